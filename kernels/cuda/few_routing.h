// Routing of a decode step in one small kernel: what Route and MakeTileItems do, for few pairs and
// tiles of kFewRowsN rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/grouped_args.h"
#include "kernels/cuda/routing.h"
#include "kernels/cuda/top_experts.h"

namespace warpline::cuda {

constexpr int kFewRoutingPairs = 1024;  // (token, slot) pairs, at most

// The tiles of a step; device memory.
struct FewTiles {
  TileItem* items = nullptr;      // [pairs], experts ascending; tile i has rows from 8 * i on
  int32_t* item_count = nullptr;  // [1]
  uint8_t* overflow = nullptr;    // [RowSpaceRows] or null: cleared for the rows of the tiles
};

struct FewRouting {
  RoutingArgs routing;  // `scratch` is not used
  FewTiles tiles;
  TopExpertsArgs top;  // unless `logits` is null, chosen first; its results are what routing reads
  bool is_early = false;  // see early_launch.h
};

// Writes what RoutingArgs and FewTiles say. Rows of an expert come in the order of (token, slot),
// so equal input gives equal places. Asynchronous on `stream`. InvalidArgument for sizes out of
// range.
absl::Status RouteFew(const FewRouting& job, cudaStream_t stream);

}  // namespace warpline::cuda
