// The router of a decode step together with the norm before it.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "kernels/cuda/row_ops.h"

namespace warpline::cuda {

struct RouterArgs {
  NormArgs norm;  // with `halves`, without `accumulate`, and `out` elsewhere than `in`
  const float* weights = nullptr;  // [experts][width of the rows]
  int32_t experts = 0;
  float* logits = nullptr;  // [rows][experts]
};

// Whether Router can take rows like these: whole groups of kPadK values, which fit shared memory.
bool CanRoute(const NormArgs& norm);

// The norm's outputs, and logits = weights times the normed rows, summed as FloatProduct does. The
// norm sums in another order than NormRows. A row's result depends on nothing but the row.
// Asynchronous on `stream`.
absl::Status Router(const RouterArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
