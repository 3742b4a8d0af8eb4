// Causal attention over the paged KV cache: projections, per-head norms, RoPE, attention, output
// projection.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/model_spec.h"
#include "worker/layers/indexer.h"
#include "worker/layers/layer.h"
#include "worker/layers/mixers.h"
#include "worker/stage_weights.h"

namespace warpline {

class AttentionMixer final : public Mixer {
 public:
  static absl::StatusOr<std::unique_ptr<Mixer>> Load(WeightLoader& loader, const ModelSpec& spec,
                                                     int layer, const StatePlan& state,
                                                     Backend& backend);

  // Uses workspace.qkv and workspace.heads.
  absl::Status Run(const LayerContext& context, const Tensor& in, const Sink& sink) const override;
  absl::Status ResetSlot(int kv_slot) const override;

 private:
  AttentionMixer() = default;
  absl::Status LoadProjections(WeightLoader& loader, const ModelSpec& spec, int layer);
  absl::Status LoadGatedQueries(WeightLoader& loader, const ModelSpec& spec, int layer);
  absl::Status Project(Backend& backend, const Tensor& in, const Tensor& qkv) const;

  int n_head_ = 0;
  int n_head_kv_ = 0;
  int head_dim_ = 0;
  float eps_ = 0;
  float scale_ = 0;
  bool is_local_ = false;  // has the sliding window
  int64_t window_ = 0;     // 0: none
  // What makes the columns of q, k and v, one after the other: one matrix where their types allow.
  struct Projection {
    Matrix matrix;
    int64_t width = 0;
  };
  std::vector<Projection> projections_;
  Matrix gate_;  // of each head's output; without weight: none
  Matrix output_;
  std::unique_ptr<Buffer> q_gamma_;  // [head_dim] or null
  std::unique_ptr<Buffer> k_gamma_;
  std::optional<Indexer> indexer_;  // none: dense attention
  std::unique_ptr<KvCache> cache_;
};

}  // namespace warpline
