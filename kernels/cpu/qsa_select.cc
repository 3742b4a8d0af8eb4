#include "kernels/cpu/qsa_select.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "kernels/cpu/rope_table.h"

namespace warpline {
namespace {

constexpr int64_t kTaskRows = 16;    // they share each page of pooled keys
constexpr int64_t kScanBlocks = 32;  // skipped together when none of them is good enough

}  // namespace

QsaSelector::QsaSelector(InstructionSet set, ThreadPool& pool)
    : row_(GetRowKernels(set)),
      dot_(GetDotKernels(set)),
      pool_(pool),
      workspaces_(pool.thread_count()) {}

absl::Status QsaSelector::Run(const QsaJob& job, const StepState& step) {
  const int n_rot = static_cast<int>(2 * job.rope.inverse_frequency.size());
  pool_.Run(step.row_count(), [&](int64_t row, int) {
    for (int head = 0; head < job.n_head; ++head) {
      float* const q = job.q.Row(row) + int64_t{head} * job.head_dim;
      row_.rms_norm(q, job.q_gamma, job.eps, job.head_dim, q);
      if (n_rot > 0) {
        row_.rotate(job.rope_table + row * 2 * n_rot, n_rot, job.rope.interleaved, q);
      }
    }
  });
  PoolKeys(job, step);
  KeepRawKeys(job, step);
  return SelectRows(job, step);
}

float* QsaSelector::PooledKey(const QsaJob& job, const StepState& step,
                              const StepState::Sequence& sequence, int64_t block) const {
  const int64_t last = (block + 1) * job.ratio - 1;
  const int64_t first_of_page = last / kPageTokens * kPageTokens / job.ratio;
  const int64_t place =
      int64_t{step.PageOf(sequence, last)} * PooledKeysOfPage(job.ratio) + (block - first_of_page);
  return job.pooled_keys + place * job.head_dim;
}

void QsaSelector::PoolKeys(const QsaJob& job, const StepState& step) {
  blocks_.clear();
  for (const StepState::Sequence& sequence : step.sequences()) {
    const int64_t end = (sequence.first_position + sequence.row_count) / job.ratio;
    for (int64_t block = sequence.first_position / job.ratio; block < end; ++block) {
      blocks_.push_back({.sequence = &sequence, .index = block});
    }
  }
  pool_.Run(static_cast<int64_t>(blocks_.size()), [&](int64_t index, int thread) {
    PoolBlock(job, step, blocks_[index], workspaces_[thread]);
  });
}

// The mean is summed in the order of the tokens, wherever the chunk's border lies.
void QsaSelector::PoolBlock(const QsaJob& job, const StepState& step, const Block& block,
                            Workspace& space) {
  const StepState::Sequence& sequence = *block.sequence;
  float* const key = PooledKey(job, step, sequence, block.index);
  const int64_t start = block.index * job.ratio;
  for (int i = 0; i < job.ratio; ++i) {
    const int64_t row = start + i - sequence.first_position;
    const float* const raw = row >= 0 ? job.k.Row(sequence.first_row + row)
                                      : job.raw_keys->Slot(sequence.kv_slot) + i * job.head_dim;
    row_.add_scaled(raw, 1, /*first=*/i == 0, job.head_dim, key);
  }
  row_.scale(1.0f / static_cast<float>(job.ratio), job.head_dim, key);
  row_.rms_norm(key, job.k_gamma, job.eps, job.head_dim, key);
  const int n_rot = static_cast<int>(2 * job.rope.inverse_frequency.size());
  if (n_rot == 0) return;
  space.rope_row.resize(2 * static_cast<size_t>(n_rot));
  FillRopeRow(job.rope, start, space.rope_row.data());
  row_.rotate(space.rope_row.data(), n_rot, job.rope.interleaved, key);
}

// Token i of the block that is not complete yet lies at place i.
void QsaSelector::KeepRawKeys(const QsaJob& job, const StepState& step) {
  for (const StepState::Sequence& sequence : step.sequences()) {
    const int64_t end = sequence.first_position + sequence.row_count;
    const int64_t start = end / job.ratio * job.ratio;
    for (int64_t position = std::max(start, sequence.first_position); position < end; ++position) {
      const int64_t row = sequence.first_row + position - sequence.first_position;
      std::memcpy(job.raw_keys->Slot(sequence.kv_slot) + (position - start) * job.head_dim,
                  job.k.Row(row), job.head_dim * sizeof(float));
    }
  }
}

absl::Status QsaSelector::SelectRows(const QsaJob& job, const StepState& step) {
  const int64_t dense = DensePositions(job.ratio, job.most_blocks);
  const int64_t stride = 1 + job.most_blocks;
  int64_t most_blocks = 0;
  tasks_.clear();
  for (const StepState::Sequence& sequence : step.sequences()) {
    const int64_t first =
        std::clamp<int64_t>(dense - sequence.first_position, 0, sequence.row_count);
    for (int64_t row = 0; row < first; ++row) {
      job.selection[(sequence.first_row + row) * stride] = -1;
    }
    for (int64_t row = first; row < sequence.row_count; row += kTaskRows) {
      tasks_.push_back({.sequence = &sequence,
                        .first_row = row,
                        .row_count = std::min(kTaskRows, sequence.row_count - row)});
    }
    if (first == sequence.row_count) continue;
    most_blocks = std::max(most_blocks, (sequence.first_position + sequence.row_count) / job.ratio);
  }
  if (tasks_.empty()) return absl::OkStatus();
  for (Workspace& space : workspaces_) {
    WL_RETURN_IF_ERROR(space.scores.Floats(kTaskRows * most_blocks).status());
    WL_RETURN_IF_ERROR(space.dots.Floats(kTaskRows * kPageTokens).status());
  }
  pool_.Run(static_cast<int64_t>(tasks_.size()), [&](int64_t index, int thread) {
    ScoreTask(job, step, tasks_[index], workspaces_[thread]);
  });
  return absl::OkStatus();
}

void QsaSelector::ScoreTask(const QsaJob& job, const StepState& step, const Task& task,
                            Workspace& space) {
  const StepState::Sequence& sequence = *task.sequence;
  const int64_t first_row = sequence.first_row + task.first_row;
  const int64_t first_visible = sequence.first_position + task.first_row + 1;
  const int64_t block_count = (first_visible + task.row_count - 1) / job.ratio;  // of the last row
  float* const scores = space.scores.Floats(0).value();  // [row_count, block_count]
  float* const dots = space.dots.Floats(0).value();      // [row_count, kPageTokens]
  for (int64_t block = 0; block < block_count;) {
    // The blocks whose last tokens share a page: their keys lie side by side.
    const int64_t page_end =
        ((block + 1) * job.ratio - 1) / kPageTokens * kPageTokens + kPageTokens;
    const int64_t end = std::min(block_count, page_end / job.ratio);
    const float* const keys = PooledKey(job, step, sequence, block);
    for (int head = 0; head < job.n_head; ++head) {
      dot_.f32({.x = job.q.Row(first_row) + int64_t{head} * job.head_dim,
                .x_stride = job.q.stride,
                .rows = task.row_count,
                .w = reinterpret_cast<const uint8_t*>(keys),
                .w_stride_bytes = job.head_dim * static_cast<int64_t>(sizeof(float)),
                .columns = end - block,
                .k = job.head_dim,
                .out = dots,
                .out_stride = kPageTokens});
      for (int64_t row = 0; row < task.row_count; ++row) {
        float* const sums = scores + row * block_count + block;
        for (int64_t i = 0; i < end - block; ++i) {
          const float dot = dots[row * kPageTokens + i];
          const float positive = dot > 0 ? dot : 0;  // NaN counts as 0
          sums[i] = head == 0 ? positive : sums[i] + positive;
        }
      }
    }
    block = end;
  }
  for (int64_t row = 0; row < task.row_count; ++row) {
    Choose(job, scores + row * block_count, (first_visible + row) / job.ratio, space.best,
           job.selection + (first_row + row) * (1 + job.most_blocks));
  }
}

// One pass: what is not above the lowest of `wanted` blocks found so far cannot be among the best.
void QsaSelector::Choose(const QsaJob& job, const float* scores, int64_t block_count,
                         std::vector<Candidate>& best, int32_t* chosen) {
  const size_t wanted = static_cast<size_t>(job.most_blocks);  // less than block_count
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.block < b.block;
  };
  float floor = -1;  // no score is below 0
  best.clear();
  for (int64_t first = 0; first < block_count; first += kScanBlocks) {
    const int64_t end = std::min(first + kScanBlocks, block_count);
    int above = 0;
    for (int64_t i = first; i < end; ++i) above |= scores[i] > floor ? 1 : 0;
    if (above == 0) continue;
    for (int64_t i = first; i < end; ++i) {
      if (scores[i] > floor) best.push_back({scores[i], static_cast<int32_t>(i)});
    }
    if (best.size() < 2 * wanted) continue;
    std::nth_element(best.begin(), best.begin() + (wanted - 1), best.end(), better);
    best.resize(wanted);
    floor = best.back().score;
  }
  std::nth_element(best.begin(), best.begin() + (wanted - 1), best.end(), better);
  *chosen = static_cast<int32_t>(wanted);
  for (size_t i = 0; i < wanted; ++i) chosen[1 + i] = best[i].block;
  std::sort(chosen + 1, chosen + 1 + wanted);
}

}  // namespace warpline
