// Causal attention over the paged KV cache: projections, per-head norms, RoPE, attention, output
// projection.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/model_spec.h"
#include "worker/layers/workspace.h"
#include "worker/rope.h"
#include "worker/stage_weights.h"

namespace warpline {

struct KvPlan {
  KvType type = KvType::kF16;
  int64_t page_count = 0;
};

// Owned by its layer; used by the stage executor's thread alone.
class AttentionMixer {
 public:
  static absl::StatusOr<AttentionMixer> Load(WeightLoader& loader, const ModelSpec& spec, int layer,
                                             const KvPlan& kv, Backend& backend);

  // residual += Wo attention(in). `in` and `residual` [rows, n_embd]; uses workspace.qkv and
  // workspace.heads.
  absl::Status Run(Backend& backend, const RopeTable& rope, const Workspace& workspace,
                   const Tensor& in, const Tensor& residual) const;

 private:
  AttentionMixer() = default;
  absl::Status LoadProjections(WeightLoader& loader, const ModelSpec& spec, int layer);
  absl::Status Project(Backend& backend, const Tensor& in, const Tensor& qkv) const;

  int n_head_ = 0;
  int n_head_kv_ = 0;
  int head_dim_ = 0;
  float eps_ = 0;
  Matrix qkv_;  // the fused matrix of all three, rows q, k, v; otherwise without weight, and the
                // next three are there
  Matrix q_;
  Matrix k_;
  Matrix v_;
  Matrix output_;
  std::unique_ptr<Buffer> q_gamma_;  // [head_dim] or null
  std::unique_ptr<Buffer> k_gamma_;
  std::unique_ptr<KvCache> cache_;
};

}  // namespace warpline
