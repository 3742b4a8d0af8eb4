// Gated DeltaNet: projections, convolution, recurrence over a memory of fixed size, output
// projection.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/model_spec.h"
#include "worker/layers/layer.h"
#include "worker/layers/mixers.h"
#include "worker/stage_weights.h"

namespace warpline {

class DeltaNetMixer final : public Mixer {
 public:
  static absl::StatusOr<std::unique_ptr<Mixer>> Load(WeightLoader& loader, const ModelSpec& spec,
                                                     int layer, const StatePlan& state,
                                                     Backend& backend);

  // Uses workspace.qkv, conv, beta, gate and heads.
  absl::Status Run(const LayerContext& context, const Tensor& in, const Sink& sink) const override;
  absl::Status ResetSlot(int kv_slot) const override;

 private:
  DeltaNetMixer(const DeltaNetSpec& shape, float eps) : shape_(shape), eps_(eps) {}
  absl::Status LoadProjections(WeightLoader& loader, int layer, int n_embd);
  absl::Status LoadPackedInput(WeightLoader& loader, int layer, int n_embd);
  absl::Status LoadPackedGates(WeightLoader& loader, int layer, int n_embd);
  absl::Status LoadVectors(WeightLoader& loader, int layer);

  const DeltaNetSpec shape_;
  const float eps_;
  Matrix qkv_;
  Matrix z_;
  Matrix beta_;
  Matrix alpha_;
  Matrix output_;
  std::unique_ptr<Buffer> kernel_;  // [conv_kernel, qkv width]
  std::unique_ptr<Buffer> a_;       // [n_head_value]
  std::unique_ptr<Buffer> dt_;      // [n_head_value]
  std::unique_ptr<Buffer> gamma_;   // [head_dim]
  std::unique_ptr<SlotState> columns_;
  std::unique_ptr<SlotState> memory_;
};

}  // namespace warpline
