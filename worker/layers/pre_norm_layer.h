// One layer in the pre-norm form: h = x + mixer(norm(x)), then h + ffn(norm(h)); with a second norm
// behind each half where the model has one.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/model_spec.h"
#include "worker/layers/feed_forward.h"
#include "worker/layers/layer.h"
#include "worker/layers/mixers.h"
#include "worker/stage_weights.h"

namespace warpline {

class PreNormLayer final : public Layer {
 public:
  static absl::StatusOr<std::unique_ptr<Layer>> Load(WeightLoader& loader, const ModelSpec& spec,
                                                     int layer, const StatePlan& state,
                                                     Backend& backend);

  absl::Status Run(const LayerContext& context, const Tensor& residual) const override;
  absl::Status ResetSlot(int kv_slot) const override { return mixer_->ResetSlot(kv_slot); }

 private:
  PreNormLayer(std::unique_ptr<Mixer> mixer, FeedForward ffn);
  // `half` writes to its sink; the residual gets what it wrote, normed first when there is a gamma.
  template <typename Half>
  absl::Status AddHalf(const LayerContext& context, const Tensor& residual, const Buffer* gamma,
                       const Buffer* post_gamma, const Half& half) const;

  float eps_ = 0;
  std::unique_ptr<Buffer> mixer_gamma_;  // [n_embd]
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Buffer> mixer_post_gamma_;  // [n_embd] or null
  std::unique_ptr<Buffer> ffn_gamma_;         // [n_embd]
  FeedForward ffn_;
  std::unique_ptr<Buffer> ffn_post_gamma_;  // [n_embd] or null
};

}  // namespace warpline
