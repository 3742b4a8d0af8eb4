#include "kernels/cuda/tile_items.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/routing.h"

namespace warpline::cuda {
namespace {

constexpr int kMinThreads = 256;  // of a block; at least one for each expert
constexpr int kBlocks = 8;        // each plans everything and writes its share of the items

// The place of this thread's expert among all by rows, most first; equal ones by index.
__device__ int RankOf(int rows, int experts, const int4* all_rows) {
  if (static_cast<int>(threadIdx.x) >= experts) return threadIdx.x;  // no expert: behind all
  int rank = 0;
  for (int i = 0; i < (experts + 3) / 4; ++i) {
    const int4 other = all_rows[i];
    const int values[4] = {other.x, other.y, other.z, other.w};
    for (int j = 0; j < 4; ++j) {
      const int expert = 4 * i + j;
      const bool is_before = expert < static_cast<int>(threadIdx.x);
      rank += values[j] > rows || (values[j] == rows && is_before) ? 1 : 0;
    }
  }
  return rank;
}

// ends[i] of all threads' values: the sum up to and with thread i.
__device__ void Accumulate(int value, int32_t* ends) {
  __shared__ int32_t warp_sums[kMaxExperts / 32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(~0u, value, distance);
    if (lane >= distance) value += other;
  }
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  int before = lane < warp ? warp_sums[lane] : 0;
  for (int distance = 16; distance > 0; distance /= 2) {
    before += __shfl_xor_sync(~0u, before, distance);
  }
  ends[threadIdx.x] = value + before;
  __syncthreads();
}

struct Plan {
  int4 rows[kMaxExperts / 4];                 // of each expert, 0 beyond the last
  int16_t expert[kMaxExperts];                // by rank
  int32_t first[kMaxExperts];                 // by rank: row of the class's first tile
  int32_t cut[kMaxTileClasses][kMaxExperts];  // by rank: tiles of each class
  int32_t ends[kMaxExperts];                  // by rank: tiles of the class up to here
  TileSize sizes[kMaxTileClasses];
};

// The items of class `c`, spread over all threads of all blocks.
__device__ void WriteItems(const TileItemsArgs& args, const Plan& plan, int c) {
  const TileClass& tile_class = args.classes[c];
  const int item_count = plan.ends[blockDim.x - 1] * tile_class.row_tiles;
  if (blockIdx.x == 0 && threadIdx.x == 0) args.item_counts[c] = item_count;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < item_count; i += kBlocks * blockDim.x) {
    const int tile = i / tile_class.row_tiles;
    int low = 0;  // the first rank with ends > tile lies in [low, high]
    int high = blockDim.x - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (plan.ends[middle] > tile) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const int expert = plan.expert[low];
    const int index = tile - (plan.ends[low] - plan.cut[c][low]);
    const int first_row = plan.first[low] + index * tile_class.n;
    const int end_row = args.start[expert] + args.count[expert];
    tile_class.items[i] = {expert, i % tile_class.row_tiles, first_row,
                           min(tile_class.n, end_row - first_row)};
  }
}

__global__ void __launch_bounds__(kMaxExperts)
    MakeItems(const __grid_constant__ TileItemsArgs args) {
  __shared__ Plan plan;
  const int expert = threadIdx.x;
  const int rows = expert < args.experts ? args.count[expert] : 0;
  reinterpret_cast<int32_t*>(plan.rows)[expert] = rows;
  if (expert < args.class_count) {
    plan.sizes[expert] = {args.classes[expert].n, args.classes[expert].cost};
  }
  __syncthreads();
  const int rank = RankOf(rows, args.experts, plan.rows);
  const TileCut cut = CutRows(plan.sizes, args.class_count, rows);
  plan.expert[rank] = static_cast<int16_t>(expert);
  plan.first[rank] = expert < args.experts ? args.start[expert] : 0;
  for (int c = 0; c < kMaxTileClasses; ++c) plan.cut[c][rank] = cut.tiles[c];
  __syncthreads();
  for (int c = 0; c < args.class_count; ++c) {
    const int tiles = plan.cut[c][threadIdx.x];
    Accumulate(tiles, plan.ends);
    WriteItems(args, plan, c);
    __syncthreads();
    plan.first[threadIdx.x] += tiles * args.classes[c].n;
    __syncthreads();
  }
}

}  // namespace

int64_t MaxTileItems(int class_index, const TileClass& tile_class, int64_t pairs, int64_t experts) {
  const int64_t used = std::min(pairs, experts);
  const int64_t tiles = class_index == 0 ? pairs / tile_class.n + used : 2 * used;
  return tiles * tile_class.row_tiles;
}

absl::Status MakeTileItems(const TileItemsArgs& args, cudaStream_t stream) {
  if (args.experts < 1 || args.experts > kMaxExperts || args.class_count < 1 ||
      args.class_count > kMaxTileClasses) {
    return absl::InvalidArgumentError(absl::StrCat("cannot make tiles of ", args.class_count,
                                                   " sizes for ", args.experts, " experts"));
  }
  const int threads = std::max(kMinThreads, static_cast<int>(RoundUp(args.experts, 32)));
  MakeItems<<<kBlocks, threads, 0, stream>>>(args);
  return LaunchStatus("making tile items");
}

}  // namespace warpline::cuda
