// Routing of a decode step in one small kernel: what Route and MakeTileItems do, for few pairs and
// tiles of kFewRowsN rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/grouped_args.h"
#include "kernels/cuda/routing.h"

namespace warpline::cuda {

constexpr int kFewRoutingPairs = 1024;  // (token, slot) pairs, at most

// The tiles of a step; device memory.
struct FewTiles {
  TileItem* items = nullptr;      // [pairs], experts ascending; tile i has rows from 8 * i on
  int32_t* item_count = nullptr;  // [1]
  uint8_t* overflow = nullptr;    // [RowSpaceRows] or null: cleared for the rows of the tiles
};

// Writes what RoutingArgs and FewTiles say; `scratch` is not used. Rows of an expert come in the
// order of (token, slot), so equal input gives equal places. Asynchronous on `stream`.
// InvalidArgument for sizes out of range.
absl::Status RouteFew(const RoutingArgs& args, const FewTiles& tiles, cudaStream_t stream);

}  // namespace warpline::cuda
