// Rows of float activations become the halves that the products read.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"

namespace warpline::cuda {

// All pointers are device memory. Each row is multiplied by the power of two that brings its
// largest magnitude into [2^14, 2^15); `row_scale` takes the inverse.
struct ConvertArgs {
  const float* x = nullptr;  // [rows][k]
  int64_t x_stride = 0;      // values from one row to the next
  int32_t rows = 0;
  int32_t k = 0;  // up to the next multiple of kPadK the halves are zeros
  // One of the two: activation tiles of `row_groups` (packed_layout.h), or rows of padded k halves.
  uint8_t* tiles = nullptr;
  int32_t row_groups = 0;
  uint16_t* halves = nullptr;
  float* row_scale = nullptr;  // [rows]; null: rows are taken as they are
  bool is_early = false;       // see early_launch.h
};

// Asynchronous on `stream`.
absl::Status ConvertRows(const ConvertArgs& args, cudaStream_t stream);

// The row space of `rows` rows of one matrix: start[0] = 0, start[1] = rows rounded up to 8,
// count[0] = rows. Asynchronous on `stream`.
absl::Status SetRowSpace(int32_t rows, int32_t* start, int32_t* count, cudaStream_t stream);

}  // namespace warpline::cuda
