// Causal attention of a step over its sequences' pages, split into tasks over the compute pool.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cpu/cpu_memory.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/cpu/step_state.h"
#include "kernels/cpu/thread_pool.h"

namespace warpline {

struct AttentionJob {
  const float* q = nullptr;  // [rows of the step, n_head * head_dim]
  int64_t q_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int n_head = 0;
  float scale = 0;
  int64_t window = 0;  // 0: none
  const CpuKvCache* cache = nullptr;
  // Rows at this position and later ones are left out.
  int64_t position_end = std::numeric_limits<int64_t>::max();
};

// What rows at position_end and later attend to: blocks of `ratio` tokens, and what lies behind
// their last complete block.
struct SelectedBlocks {
  int ratio = 0;
  const int32_t* blocks = nullptr;  // [rows, stride]: their number, then ascending indices
  int64_t stride = 0;
};

class PagedAttention {
 public:
  static constexpr int64_t kTaskRows = 96;  // pairs of row and head; a decoded page serves all

  PagedAttention(InstructionSet set, ThreadPool& pool);
  absl::Status Reserve(int head_dim);  // call before Run for heads of this size
  void Run(const AttentionJob& job, const StepState& step);
  // The rows that Run left out, in sparse_attention.cc.
  void RunSelected(const AttentionJob& job, const SelectedBlocks& selected, const StepState& step);

 private:
  // Some consecutive rows of a sequence and some heads that share a KV head.
  struct Task {
    const StepState::Sequence* sequence;
    int64_t first_row, row_count;  // within the sequence
    int first_head, head_count;
  };
  // Scratch of one thread, for kTaskRows pairs of row and head.
  struct Workspace {
    CpuScratch floats;  // what the tile's pointers lead to
    std::vector<const float*> queries;
    std::vector<int> low, high;
    float *keys = nullptr, *values = nullptr;
    AttentionTile tile;
  };

  void AddTasks(const AttentionJob& job, const StepState& step);
  // Lays the scratch out for heads of this size.
  static void LayOut(int head_dim, Workspace& space);
  void RunTask(const AttentionJob& job, const StepState& step, const Task& task, int thread);
  void StartRows(const AttentionJob& job, const Task& task, Workspace& space);
  void FinishRows(const AttentionJob& job, const Task& task, const Workspace& space);
  void RunSelectedTask(const AttentionJob& job, const SelectedBlocks& selected,
                       const StepState& step, const Task& task, int thread);

  const AttentionKernels& kernels_;
  ThreadPool& pool_;
  std::vector<Task> tasks_;
  std::vector<Workspace> workspaces_;
};

}  // namespace warpline
