// Which blocks of tokens the rows of a sparse attention layer see.
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

// Owned by its mixer; used by the stage executor's thread alone.
class Indexer {
 public:
  static absl::StatusOr<Indexer> Load(WeightLoader& loader, const ModelSpec& spec, int layer,
                                      const StatePlan& state, Backend& backend);

  // Leaves the choice for the rows of `in` [rows, n_embd] in workspace.selection; uses
  // workspace.index.
  absl::Status Select(const LayerContext& context, const Tensor& in) const;
  absl::Status ResetSlot(int kv_slot) const { return raw_keys_->Reset(kv_slot); }

  int ratio() const { return ratio_; }
  int64_t most_blocks() const { return most_blocks_; }

 private:
  Indexer() = default;

  int n_head_ = 0;
  int head_dim_ = 0;
  int ratio_ = 0;
  int64_t most_blocks_ = 0;
  float eps_ = 0;
  Matrix q_;
  Matrix k_;
  std::unique_ptr<Buffer> q_gamma_;      // [head_dim]
  std::unique_ptr<Buffer> k_gamma_;      // [head_dim]
  std::unique_ptr<SlotState> raw_keys_;  // [ratio - 1, head_dim]
  std::unique_ptr<Buffer> pooled_keys_;  // [page_count, PooledKeysOfPage(ratio), head_dim]
};

}  // namespace warpline
