// How an expert's rows are cut into tiles of the token counts that kernels exist for. Plain C++,
// for host and device.
#pragma once

#include <stdint.h>

#include "kernels/quant_decode_common.h"

namespace warpline::cuda {

constexpr int kMaxTileClasses = 5;

// A token count and what one tile of it costs, in any unit.
struct TileSize {
  int32_t n = 0;
  float cost = 0;
};

// How many tiles of each size an expert gets.
struct TileCut {
  int32_t tiles[kMaxTileClasses] = {};
};

// The cheapest of: as many tiles of the largest size as fit, one less or one more, and at most two
// others; the first one found among equals. With the largest tiles first, every tile has a live
// row. Sizes descend; `rows` 0 gives no tiles.
WL_HOST_DEVICE inline TileCut CutRows(const TileSize* sizes, int size_count, int rows) {
  float best_cost = 3.0e38f;
  int best_full = 0;
  int best_first = -1;
  int best_second = -1;
  const int largest = sizes[0].n;
  const int most_full = (rows + largest - 1) / largest;
  for (int full = most_full < 2 ? 0 : most_full - 2; full <= most_full; ++full) {
    const int rest = rows - full * largest;
    const float cost = static_cast<float>(full) * sizes[0].cost;
    if (rest <= 0) {
      if (cost < best_cost) {
        best_cost = cost;
        best_full = full;
        best_first = best_second = -1;
      }
      continue;
    }
    for (int a = 0; a < size_count; ++a) {
      const float cost_a = cost + sizes[a].cost;
      if (sizes[a].n >= rest) {
        if (cost_a >= best_cost) continue;
        best_cost = cost_a;
        best_full = full;
        best_first = a;
        best_second = -1;
        continue;
      }
      for (int b = a; b < size_count; ++b) {
        const float cost_b = cost_a + sizes[b].cost;
        if (sizes[a].n + sizes[b].n < rest || cost_b >= best_cost) continue;
        best_cost = cost_b;
        best_full = full;
        best_first = a;
        best_second = b;
      }
    }
  }
  TileCut cut;
  cut.tiles[0] = best_full;
  for (int i = 0; i < size_count; ++i) {
    cut.tiles[i] += (i == best_first ? 1 : 0) + (i == best_second ? 1 : 0);
  }
  return cut;
}

}  // namespace warpline::cuda
