// The feed-forward half of a layer: one SwiGLU, or a mixture of experts with an optional shared
// one.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/model_spec.h"
#include "worker/layers/layer.h"
#include "worker/stage_weights.h"

namespace warpline {

// Owned by its layer; used by the stage executor's thread alone.
class FeedForward {
 public:
  static absl::StatusOr<FeedForward> Load(WeightLoader& loader, const ModelSpec& spec, int layer);

  // `in` [rows, n_embd].
  absl::Status Run(Backend& backend, const Tensor& in, const Sink& sink) const;

 private:
  FeedForward() = default;
  absl::Status LoadDense(WeightLoader& loader, const ModelSpec& spec, int layer);
  absl::Status LoadExperts(WeightLoader& loader, const ModelSpec& spec, int layer);
  absl::Status LoadSharedExpert(WeightLoader& loader, const ModelSpec& spec, int layer);

  // Without tensors.
  MoeFfnArgs Experts() const;

  bool is_moe_ = false;
  Activation activation_ = Activation::kSilu;
  int used_count_ = 0;
  bool renormalise_ = false;
  Matrix router_;
  Matrix gate_;  // one matrix, or expert_count of them
  Matrix up_;
  Matrix gate_up_;  // of experts, instead of both; otherwise without weight
  Matrix down_;
  Matrix shared_gate_input_;  // without weight: no shared expert
  Matrix shared_gate_;
  Matrix shared_up_;
  Matrix shared_down_;
};

}  // namespace warpline
