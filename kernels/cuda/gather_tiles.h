// Rows of activations become tiles of halves (packed_layout.h), in the order of the row space.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"

namespace warpline::cuda {

// All pointers are device memory.
struct GatherArgs {
  const void* x = nullptr;  // [tokens][k], floats or halves
  bool x_is_float = true;
  int32_t tokens = 0;
  int32_t k = 0;  // live values; up to the next multiple of kPadK the tiles get zeros
  const int32_t* slot_row = nullptr;  // [tokens][slots], see RoutingArgs; -1 is passed over
  int32_t slots = 0;
  uint8_t* tiles = nullptr;  // [padded k / 64][row_groups] tiles
  int32_t row_groups = 0;
  // Halves that are scaled already may be gathered row by row, which writes memory in order: then
  // `row_token` and `row_end` are given, and `slot_row` is not read.
  const int32_t* row_token = nullptr;  // [rows], see RoutingArgs; -1 is passed over
  const int32_t* row_end = nullptr;    // the end of the row space: start[experts]
  const float* token_scale = nullptr;  // [tokens] or null (1): what undoes the scaling of x
  // [rows] or null. Gathering by rows stores token_scale here. Otherwise, where given, each row is
  // multiplied by the power of two that brings its largest magnitude into [2^14, 2^15), and the
  // inverse is stored here.
  float* row_scale = nullptr;
};

// Asynchronous on `stream`. Each token is read once and written to all of its rows.
absl::Status GatherTiles(const GatherArgs& args, cudaStream_t stream);

// SwiGLU of two products, for gate and up weights of different types.
struct SwiGluArgs {
  const float* gate = nullptr;        // [rows][columns] in the row space
  const float* up = nullptr;          // [rows][columns]
  const int32_t* slot_row = nullptr;  // [pairs]: the rows in use; -1 is passed over
  int32_t pairs = 0;
  int32_t columns = 0;  // up to the next multiple of kPadK the tiles get zeros
  float output_scale = 1;
  uint8_t* tiles = nullptr;  // [padded columns / 64][row_groups] tiles
  int32_t row_groups = 0;
  uint8_t* overflow = nullptr;  // [rows] or null, see GroupedArgs
};

// Asynchronous on `stream`.
absl::Status SwiGluTiles(const SwiGluArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
