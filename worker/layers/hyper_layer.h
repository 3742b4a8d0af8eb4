// One layer over a wide residual: each half mixes the streams down, runs, and is combined with the
// streams; one layer of a model also has the n-gram table before that.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/model_spec.h"
#include "worker/layers/feed_forward.h"
#include "worker/layers/hyper_connection.h"
#include "worker/layers/layer.h"
#include "worker/layers/mixers.h"
#include "worker/layers/ngram_injection.h"
#include "worker/stage_weights.h"

namespace warpline {

class HyperLayer final : public Layer {
 public:
  static absl::StatusOr<std::unique_ptr<Layer>> Load(WeightLoader& loader, const ModelSpec& spec,
                                                     int layer, const StatePlan& state,
                                                     Backend& backend);

  absl::Status Run(const LayerContext& context, const Tensor& residual) const override;
  absl::Status ResetSlot(int kv_slot) const override;

 private:
  HyperLayer(HyperConnection mixer_streams, std::unique_ptr<Mixer> mixer,
             HyperConnection ffn_streams, FeedForward ffn);

  int n_embd_ = 0;
  std::optional<NgramInjection> ngrams_;
  HyperConnection mixer_streams_;
  std::unique_ptr<Mixer> mixer_;
  HyperConnection ffn_streams_;
  FeedForward ffn_;
};

}  // namespace warpline
