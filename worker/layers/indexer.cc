#include "worker/layers/indexer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/row_widths.h"

namespace warpline {

absl::StatusOr<Indexer> Indexer::Load(WeightLoader& loader, const ModelSpec& spec, int layer,
                                      const StatePlan& state, Backend& backend) {
  Indexer indexer;
  indexer.n_head_ = spec.indexer.n_head;
  indexer.head_dim_ = spec.indexer.head_dim;
  indexer.ratio_ = spec.layers[layer].compress_ratio;
  indexer.most_blocks_ = MostBlocks(spec, layer, state.max_context);
  indexer.eps_ = static_cast<float>(spec.rms_eps);
  const auto name = [layer](const char* suffix) {
    return LayerTensorName(layer, absl::StrCat("indexer.", suffix));
  };
  const int64_t q_width = int64_t{indexer.n_head_} * indexer.head_dim_;
  WL_ASSIGN_OR_RETURN(indexer.q_, loader.LoadMatrix(name("q_proj"), {.input_width = spec.n_embd,
                                                                     .output_width = q_width}));
  WL_ASSIGN_OR_RETURN(indexer.k_,
                      loader.LoadMatrix(name("k_proj"), {.input_width = spec.n_embd,
                                                         .output_width = indexer.head_dim_}));
  WL_ASSIGN_OR_RETURN(indexer.q_gamma_,
                      loader.LoadVector(name("q_norm.weight"), indexer.head_dim_));
  WL_ASSIGN_OR_RETURN(indexer.k_gamma_,
                      loader.LoadVector(name("k_norm.weight"), indexer.head_dim_));
  const int64_t raw_values = int64_t{indexer.ratio_ - 1} * indexer.head_dim_;
  WL_ASSIGN_OR_RETURN(indexer.raw_keys_, backend.CreateSlotState({.slot_count = state.slot_count,
                                                                  .value_count = raw_values}));
  const int64_t page_values = int64_t{PooledKeysOfPage(indexer.ratio_)} * indexer.head_dim_;
  WL_ASSIGN_OR_RETURN(indexer.pooled_keys_, backend.Allocate(state.page_count * page_values *
                                                             static_cast<int64_t>(sizeof(float))));
  return indexer;
}

absl::Status Indexer::Select(const LayerContext& context, const Tensor& in) const {
  Backend& backend = context.backend;
  const int64_t q_width = int64_t{n_head_} * head_dim_;
  const Tensor rows = PackedRows(context.workspace.index.get(), in.row_count, q_width + head_dim_);
  const Tensor q = Columns(rows, 0, q_width);
  const Tensor k = Columns(rows, q_width, head_dim_);
  WL_RETURN_IF_ERROR(backend.Linear({.matrix = q_.linear(), .in = in, .out = q}));
  WL_RETURN_IF_ERROR(backend.Linear({.matrix = k_.linear(), .in = in, .out = k}));
  return backend.QsaIndexSelect({.q = q,
                                 .k = k,
                                 .n_head = n_head_,
                                 .head_dim = head_dim_,
                                 .ratio = ratio_,
                                 .most_blocks = most_blocks_,
                                 .q_gamma = q_gamma_.get(),
                                 .k_gamma = k_gamma_.get(),
                                 .eps = eps_,
                                 .rope = context.rope.args(),
                                 .raw_keys = raw_keys_.get(),
                                 .pooled_keys = pooled_keys_.get(),
                                 .selection = context.workspace.selection.get()});
}

}  // namespace warpline
