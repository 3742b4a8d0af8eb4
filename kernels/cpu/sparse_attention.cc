// Attention of single rows over chosen blocks of tokens: those are gathered into tiles in the order
// of their positions, so a row's result does not depend on the rows beside it.
#include <algorithm>

#include "kernels/cpu/attention.h"

namespace warpline {

void PagedAttention::RunSelected(const AttentionJob& job, const SelectedBlocks& selected,
                                 const StepState& step) {
  const int kv_heads = job.cache->args().n_head_kv;
  const int group = job.n_head / kv_heads;
  const int heads = static_cast<int>(std::min<int64_t>(group, kTaskRows));
  tasks_.clear();
  for (const StepState::Sequence& sequence : step.sequences()) {
    const int64_t dense = std::max<int64_t>(0, job.position_end - sequence.first_position);
    for (int64_t row = dense; row < sequence.row_count; ++row) {
      for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
        for (int head = 0; head < group; head += heads) {
          tasks_.push_back({.sequence = &sequence,
                            .first_row = row,
                            .row_count = 1,
                            .first_head = kv_head * group + head,
                            .head_count = std::min(heads, group - head)});
        }
      }
    }
  }
  pool_.Run(static_cast<int64_t>(tasks_.size()), [&](int64_t index, int thread) {
    RunSelectedTask(job, selected, step, tasks_[index], thread);
  });
}

void PagedAttention::RunSelectedTask(const AttentionJob& job, const SelectedBlocks& selected,
                                     const StepState& step, const Task& task, int thread) {
  Workspace& space = workspaces_[thread];
  const KvLayout& layout = job.cache->layout();
  const StepState::Sequence& sequence = *task.sequence;
  const int kv_head = task.first_head / (job.n_head / job.cache->args().n_head_kv);
  StartRows(job, task, space);
  AttentionTile& tile = space.tile;
  int filled = 0;  // tokens of the tile
  const auto run_tile = [&] {
    std::fill_n(space.low.data(), tile.row_count, 0);
    std::fill_n(space.high.data(), tile.row_count, filled);
    kernels_.tile(tile);
    filled = 0;
  };
  const auto gather = [&](int64_t position, int64_t end) {
    while (position < end) {
      const int first = static_cast<int>(position % kPageTokens);
      const int count = static_cast<int>(
          std::min<int64_t>({end - position, kPageTokens - first, kPageTokens - filled}));
      const uint8_t* const page = job.cache->Page(step.PageOf(sequence, position), kv_head);
      kernels_.gather_keys(layout, page, first, count, filled, space.keys);
      kernels_.decode_values(layout, page, first, first + count,
                             space.values + int64_t{filled - first} * tile.padded_dim);
      filled += count;
      position += count;
      if (filled == kPageTokens) run_tile();
    }
  };
  const int64_t row = sequence.first_row + task.first_row;
  const int64_t visible = sequence.first_position + task.first_row + 1;
  const int32_t* const blocks = selected.blocks + row * selected.stride;
  for (int32_t i = 1; i <= blocks[0]; ++i) {
    const int64_t start = int64_t{blocks[i]} * selected.ratio;
    gather(start, start + selected.ratio);
  }
  gather(visible / selected.ratio * selected.ratio, visible);
  if (filled > 0) run_tile();
  FinishRows(job, task, space);
}

}  // namespace warpline
