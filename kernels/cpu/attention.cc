#include "kernels/cpu/attention.h"

#include <algorithm>
#include <limits>

#include "base/status.h"

namespace warpline {
namespace {

int64_t DivideUp(int64_t value, int64_t by) { return (value + by - 1) / by; }
int PaddedDim(int head_dim) { return static_cast<int>(DivideUp(head_dim, 16) * 16); }

}  // namespace

PagedAttention::PagedAttention(InstructionSet set, ThreadPool& pool)
    : kernels_(GetAttentionKernels(set)), pool_(pool), workspaces_(pool.thread_count()) {
  for (Workspace& space : workspaces_) {
    space.queries.resize(kTaskRows);
    space.low.resize(kTaskRows);
    space.high.resize(kTaskRows);
  }
}

absl::Status PagedAttention::Reserve(int head_dim) {
  const int64_t padded = PaddedDim(head_dim);
  // Keys, values, scores, sums, maxima, totals, corrections, shifts.
  const int64_t floats = 2 * kPageTokens * padded + kTaskRows * (kPageTokens + 4 + padded);
  for (Workspace& space : workspaces_) WL_RETURN_IF_ERROR(space.floats.Floats(floats).status());
  return absl::OkStatus();
}

void PagedAttention::AddTasks(const AttentionJob& job, const StepState& step) {
  const int kv_heads = job.cache->args().n_head_kv;
  const int group = job.n_head / kv_heads;
  // Few pairs of row and KV head for many threads: the heads of a group are split as well, though
  // each part then decodes the pages for itself.
  const int64_t wanted = pool_.thread_count();
  const int64_t whole = step.row_count() * kv_heads;
  const int parts = static_cast<int>(
      std::clamp<int64_t>(DivideUp(wanted, std::max<int64_t>(whole, 1)), 1, group));
  const int heads = static_cast<int>(std::min<int64_t>(DivideUp(group, parts), kTaskRows));
  const int64_t rows = kTaskRows / heads;
  for (const StepState::Sequence& sequence : step.sequences()) {
    const int64_t row_count =
        std::min(sequence.row_count, job.position_end - sequence.first_position);
    for (int64_t row = 0; row < row_count; row += rows) {
      for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
        for (int head = 0; head < group; head += heads) {
          tasks_.push_back({.sequence = &sequence,
                            .first_row = row,
                            .row_count = std::min(rows, row_count - row),
                            .first_head = kv_head * group + head,
                            .head_count = std::min(heads, group - head)});
        }
      }
    }
  }
}

void PagedAttention::Run(const AttentionJob& job, const StepState& step) {
  tasks_.clear();
  AddTasks(job, step);
  pool_.Run(static_cast<int64_t>(tasks_.size()),
            [&](int64_t index, int thread) { RunTask(job, step, tasks_[index], thread); });
}

void PagedAttention::LayOut(int head_dim, Workspace& space) {
  AttentionTile& tile = space.tile;
  tile.head_dim = head_dim;
  tile.padded_dim = PaddedDim(head_dim);
  space.keys = reinterpret_cast<float*>(space.floats.Floats(0).value());
  space.values = space.keys + kPageTokens * tile.padded_dim;
  tile.scores = space.values + kPageTokens * tile.padded_dim;
  tile.sums = tile.scores + kTaskRows * kPageTokens;
  tile.largest = tile.sums + kTaskRows * tile.padded_dim;
  tile.total = tile.largest + kTaskRows;
  tile.corrections = tile.total + kTaskRows;
  tile.shifts = tile.corrections + kTaskRows;
  tile.keys = space.keys;
  tile.values = space.values;
  tile.queries = space.queries.data();
  tile.low = space.low.data();
  tile.high = space.high.data();
}

void PagedAttention::StartRows(const AttentionJob& job, const Task& task, Workspace& space) {
  const int head_dim = job.cache->layout().head_dim;
  LayOut(head_dim, space);
  AttentionTile& tile = space.tile;
  tile.scale = job.scale;
  tile.row_count = static_cast<int>(task.row_count) * task.head_count;
  const int64_t first_row = task.sequence->first_row + task.first_row;
  for (int i = 0; i < tile.row_count; ++i) {
    const int64_t head = task.first_head + i % task.head_count;
    space.queries[i] = job.q + (first_row + i / task.head_count) * job.q_stride + head * head_dim;
    tile.largest[i] = -std::numeric_limits<float>::infinity();
    tile.total[i] = 0;
  }
  std::fill_n(tile.sums, int64_t{tile.row_count} * tile.padded_dim, 0.0f);
}

void PagedAttention::FinishRows(const AttentionJob& job, const Task& task, const Workspace& space) {
  const AttentionTile& tile = space.tile;
  const int64_t first_row = task.sequence->first_row + task.first_row;
  for (int i = 0; i < tile.row_count; ++i) {
    const int64_t head = task.first_head + i % task.head_count;
    float* const out =
        job.out + (first_row + i / task.head_count) * job.out_stride + head * tile.head_dim;
    kernels_.finish(tile.sums + int64_t{i} * tile.padded_dim, tile.total[i], tile.head_dim, out);
  }
}

void PagedAttention::RunTask(const AttentionJob& job, const StepState& step, const Task& task,
                             int thread) {
  Workspace& space = workspaces_[thread];
  const KvLayout& layout = job.cache->layout();
  StartRows(job, task, space);
  AttentionTile& tile = space.tile;
  const StepState::Sequence& sequence = *task.sequence;
  const int64_t first_position = sequence.first_position + task.first_row;
  const int64_t end = first_position + task.row_count;
  const int kv_head = task.first_head / (job.n_head / job.cache->args().n_head_kv);
  const auto first_visible = [&job](int64_t position) {
    return job.window > 0 ? std::max<int64_t>(0, position - job.window + 1) : 0;
  };
  int64_t start = first_visible(first_position) / kPageTokens * kPageTokens;
  for (; start < end; start += kPageTokens) {
    const auto within = [start](int64_t position) {
      return static_cast<int>(std::clamp<int64_t>(position - start, 0, kPageTokens));
    };
    for (int i = 0; i < tile.row_count; ++i) {
      const int64_t position = first_position + i / task.head_count;
      space.low[i] = within(first_visible(position));
      space.high[i] = within(position + 1);
    }
    const uint8_t* page = job.cache->Page(step.PageOf(sequence, start), kv_head);
    kernels_.decode_keys(layout, page, space.keys);
    kernels_.decode_values(layout, page, within(first_visible(first_position)), within(end),
                           space.values);
    kernels_.tile(tile);
  }
  FinishRows(job, task, space);
}

}  // namespace warpline
