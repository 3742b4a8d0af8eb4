// Products with float weights in single precision: routers, whose scores decide, and models of
// plain floats.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"

namespace warpline::cuda {

// y[row] = scale * weights of the row's expert * x[source of the row]. All pointers are device
// memory.
struct FloatProductArgs {
  const float* weights = nullptr;  // [expert][columns][k]
  int64_t expert_stride = 0;       // values from one expert's first weight to the next's
  int32_t columns = 0;
  int32_t k = 0;
  const float* x = nullptr;  // rows of k values
  int64_t x_stride = 0;
  int32_t rows = 0;
  bool is_prompt = false;  // a prompt's rows take tiles where columns are many
  // Null: one matrix for all rows. Otherwise row r reads x row r / x_rows_per_source with the
  // matrix of expert experts[r].
  const int32_t* experts = nullptr;
  int32_t rows_per_source = 1;
  const float* expert_scales = nullptr;  // [experts] or null
  float* y = nullptr;                    // [rows][columns]
  int64_t y_stride = 0;
  bool is_early = false;  // see early_launch.h
};

// Lane l of a warp takes k = 4 l to 4 l + 3 of each 128, ascending, with fused multiply-adds; then
// a fixed tree over the lanes. Prompts with many columns add as float_tile.h says. Either way the
// same bits whatever the other rows. Asynchronous on `stream`.
absl::Status FloatProduct(const FloatProductArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
