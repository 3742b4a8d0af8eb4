// Cuts each expert's rows into tiles of the token counts that kernels exist for, on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/grouped_args.h"
#include "kernels/cuda/tile_cut.h"

namespace warpline::cuda {

// Tiles of one token count.
struct TileClass {
  int32_t n = 0;              // tokens of a tile, at most
  float cost = 0;             // of a tile over all weight rows, in any unit
  int32_t row_tiles = 0;      // blocks of weight rows, each an item of its own
  TileItem* items = nullptr;  // [MaxTileItems], device memory
};

struct TileItemsArgs {
  const int32_t* start = nullptr;  // [experts + 1], see RoutingArgs; device memory
  const int32_t* count = nullptr;  // [experts]
  int32_t experts = 0;
  int32_t class_count = 0;
  TileClass classes[kMaxTileClasses];  // n descending
  int32_t* item_counts = nullptr;      // [class_count], device memory
};

// Items that a class may get: index 0 is the largest n.
int64_t MaxTileItems(int class_index, const TileClass& tile_class, int64_t pairs, int64_t experts);

// Asynchronous on `stream`. An expert gets tiles of the largest n and at most two others, so that
// the sum of costs is least; experts with most rows come first, tiles of one expert together, and
// the blocks of weight rows of a tile in a row, since they share its activations.
absl::Status MakeTileItems(const TileItemsArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
