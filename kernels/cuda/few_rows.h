// How the kernels of few_rows.cuh are launched. Plain C++.
#pragma once

#include <cstdint>

#include "kernels/cuda/packed_layout.h"

namespace warpline::cuda {

constexpr int kFewRowsN = 8;          // rows of an item, at most
constexpr int kFewRowsWarpK = 256;    // values of k of one warp
constexpr int kFewRowsMaxWarps = 16;  // of a block; a longer k is walked in rounds
constexpr int kFewRowsBatch = 4;      // row blocks whose parts are added together

// Threads of a block for rows of `k` values.
constexpr int FewRowsThreads(int k) {
  const int warps = (k + kFewRowsWarpK - 1) / kFewRowsWarpK;
  return 32 * (warps < kFewRowsMaxWarps ? warps : kFewRowsMaxWarps);
}

// Dynamic shared memory of a block: the format's table and the parts of two batches.
constexpr int FewRowsSharedBytes(int table_bytes, int warps) {
  return table_bytes + 2 * kFewRowsBatch * warps * 32 * 16;
}

}  // namespace warpline::cuda
