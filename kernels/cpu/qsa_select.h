// The indexer of sparse attention: pooled keys of blocks, scores, and the choice of blocks for each
// row.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_memory.h"
#include "kernels/cpu/op_checks.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/cpu/step_state.h"
#include "kernels/cpu/thread_pool.h"

namespace warpline {

// Rows at lower positions see everything: their complete blocks are at most `most_blocks`.
inline int64_t DensePositions(int ratio, int64_t most_blocks) {
  return (most_blocks + 1) * ratio - 1;
}

// QsaIndexSelectArgs with the back end's own types; checked.
struct QsaJob {
  CpuRows q, k;
  int n_head = 0;
  int head_dim = 0;
  int ratio = 0;
  int64_t most_blocks = 0;
  const float* q_gamma = nullptr;
  const float* k_gamma = nullptr;
  float eps = 0;
  RopeArgs rope;
  const float* rope_table = nullptr;  // of the step's rows
  CpuSlotState* raw_keys = nullptr;
  float* pooled_keys = nullptr;
  int32_t* selection = nullptr;
};

class QsaSelector {
 public:
  QsaSelector(InstructionSet set, ThreadPool& pool);
  absl::Status Run(const QsaJob& job, const StepState& step);

 private:
  struct Block {  // one that becomes complete in this step
    const StepState::Sequence* sequence;
    int64_t index;
  };
  struct Task {  // rows of a sequence, counted from its first
    const StepState::Sequence* sequence;
    int64_t first_row, row_count;
  };
  struct Candidate {
    float score;
    int32_t block;
  };
  struct Workspace {
    CpuScratch scores, dots;
    std::vector<float> rope_row;
    std::vector<Candidate> best;
  };

  void PoolKeys(const QsaJob& job, const StepState& step);
  void PoolBlock(const QsaJob& job, const StepState& step, const Block& block, Workspace& space);
  void KeepRawKeys(const QsaJob& job, const StepState& step);
  absl::Status SelectRows(const QsaJob& job, const StepState& step);
  void ScoreTask(const QsaJob& job, const StepState& step, const Task& task, Workspace& space);
  static void Choose(const QsaJob& job, const float* scores, int64_t block_count,
                     std::vector<Candidate>& best, int32_t* chosen);
  float* PooledKey(const QsaJob& job, const StepState& step, const StepState::Sequence& sequence,
                   int64_t block) const;

  const RowKernels& row_;
  const DotKernels& dot_;
  ThreadPool& pool_;
  std::vector<Block> blocks_;
  std::vector<Task> tasks_;
  std::vector<Workspace> workspaces_;
};

}  // namespace warpline
