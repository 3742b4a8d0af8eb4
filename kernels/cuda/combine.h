// Sums the expert outputs of each token.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/exact_experts.h"

namespace warpline::cuda {

// All pointers are device memory.
struct CombineArgs {
  const void* y = nullptr;  // [rows][columns] in the row space, routing weights already applied
  bool y_is_float = false;
  const int32_t* slot_row = nullptr;  // [tokens][slots], see RoutingArgs; -1 adds nothing
  int32_t tokens = 0;
  int32_t slots = 0;
  int32_t columns = 0;
  const float* shared = nullptr;    // [tokens][columns] or null: the shared expert's output
  const float* residual = nullptr;  // [tokens][columns] or null
  float* out = nullptr;             // [tokens][columns]; may be `residual` or `shared`
  // [rows] or null: rows whose hidden values were beyond halves. Where given, columns of their
  // tokens, and such as have an infinite y, are not written but noted in `pending`; y is halves.
  const uint8_t* overflow = nullptr;
  PendingRuns pending;
  bool is_early = false;  // see early_launch.h
};

// out = residual + (y of slot 0 + y of slot 1 + ... + shared), in floats and in this order, so that
// equal input gives equal bits. Asynchronous on `stream`.
absl::Status Combine(const CombineArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
