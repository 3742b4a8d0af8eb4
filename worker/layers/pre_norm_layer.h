// One layer in the pre-norm form: h = x + mixer(norm(x)), then h + ffn(norm(h)).
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/model_spec.h"
#include "worker/layers/attention_mixer.h"
#include "worker/layers/feed_forward.h"
#include "worker/layers/workspace.h"
#include "worker/rope.h"
#include "worker/stage_weights.h"

namespace warpline {

// Owned by the stage model; used by the stage executor's thread alone.
class PreNormLayer {
 public:
  static absl::StatusOr<PreNormLayer> Load(WeightLoader& loader, const ModelSpec& spec, int layer,
                                           const KvPlan& kv, Backend& backend);

  // Runs the step's rows, in place in `residual` [rows, n_embd], which is workspace.residual.
  absl::Status Run(Backend& backend, const RopeTable& rope, const Workspace& workspace,
                   const Tensor& residual) const;

 private:
  PreNormLayer(AttentionMixer mixer, FeedForward ffn);

  float eps_ = 0;
  std::unique_ptr<Buffer> mixer_gamma_;  // [n_embd]
  AttentionMixer mixer_;
  std::unique_ptr<Buffer> ffn_gamma_;  // [n_embd]
  FeedForward ffn_;
};

}  // namespace warpline
