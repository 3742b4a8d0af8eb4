// Products of activation rows with weight matrices, plain and gated, several at once over the
// compute pool.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cpu/cpu_memory.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace warpline {

// Columns [first_column, ..) of one expert's matrix, with the bias of the first of them.
struct MatrixSlice {
  const CpuWeight* weight = nullptr;
  int64_t expert = 0;
  int64_t first_column = 0;
  const float* bias = nullptr;  // may be null
};

// out (+)= matrix x, or out = act(matrix x) . (up x).
struct MatrixJob {
  MatrixSlice matrix;
  MatrixSlice up;  // weight is null: a plain product
  Activation activation = Activation::kSilu;
  const float* x = nullptr;  // [row_count, input_width]
  int64_t x_stride = 0;
  int64_t row_count = 0;
  int64_t column_count = 0;
  float* out = nullptr;  // [row_count, column_count]; not part of x
  int64_t out_stride = 0;
  bool accumulate = false;  // plain products only
};

class MatrixProduct {
 public:
  MatrixProduct(InstructionSet set, ThreadPool& pool);

  // Sizes the scratch for matrices of this input width.
  absl::Status Reserve(int64_t input_width);
  // Runs all jobs; their outputs may not overlap. Input widths must have been reserved.
  void Run(absl::Span<const MatrixJob> jobs);

 private:
  struct Task {
    const MatrixJob* job;
    int64_t first_column, last_column, first_row, last_row;
  };
  // Scratch of one thread.
  struct Workspace {
    CpuScratch panel;  // decoded weights of the matrix and of up
    std::vector<float> dots;
  };

  void AddTasks(const MatrixJob& job);
  void RunTask(const Task& task, int thread);
  void RunBlock(const Task& task, int64_t row, int64_t rows, const DotArgs& matrix,
                const DotArgs& up, Workspace& space);
  // Where the kernel finds columns [first, first + count) of a slice as f32: in place, or decoded
  // to `panel`.
  DotArgs Columns(const MatrixSlice& slice, int64_t first, int64_t count, bool fused,
                  float* panel) const;
  void Dot(QuantType type, bool fused, const DotArgs& args) const;

  const InstructionSet set_;
  const DotKernels& dot_;
  const RowKernels& row_;
  ThreadPool& pool_;
  std::vector<Task> tasks_;
  std::vector<Workspace> workspaces_;
  int64_t reserved_width_ = 0;
};

}  // namespace warpline
