// What ends an expert layer: the sum over each token's slots, exact where halves do not hold it,
// and the norm that follows in decode steps.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "kernels/cuda/combine.h"
#include "kernels/cuda/exact_experts.h"
#include "kernels/cuda/row_ops.h"

namespace warpline::cuda {

// Of the same step.
struct SlotSums {
  CombineArgs combine;
  ExactExpertsArgs exact;
};

// Asynchronous on `stream`, as the next.
absl::Status MakeSums(const SlotSums& sums, cudaStream_t stream);

// Whether NormSums can take them: few tokens, whose rows a block holds.
bool CanNormSums(const SlotSums& sums, const NormArgs& norm);

// The sums and the norm of their rows in one kernel: the same bits as one after the other.
absl::Status NormSums(const SlotSums& sums, const NormArgs& norm, cudaStream_t stream);

}  // namespace warpline::cuda
