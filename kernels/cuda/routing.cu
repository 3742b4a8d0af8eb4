#include "kernels/cuda/routing.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/packed_layout.h"

namespace warpline::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kThreadExperts = kMaxExperts / kThreads;  // of a thread that scans
constexpr int kMinPairs = 1024;                         // of a block

// The pairs of a block, and of one of its warps: consecutive, so that order is kept.
struct Range {
  int64_t begin;
  int64_t end;
};
__device__ Range WarpRange(const RoutingArgs& args, int64_t block_pairs) {
  const int64_t pairs = static_cast<int64_t>(args.tokens) * args.slots;
  const int64_t warp_pairs = block_pairs / kWarps;  // block_pairs is a multiple of kThreads
  const int64_t begin = blockIdx.x * block_pairs + threadIdx.x / 32 * warp_pairs;
  return {min(begin, pairs), min(begin + warp_pairs, pairs)};
}

// The expert of a pair, -1 where there is none.
__device__ __forceinline__ int ExpertOf(const RoutingArgs& args, int64_t pair, int64_t end) {
  const int expert = pair < end ? __ldg(args.expert_ids + pair) : -1;
  return expert >= 0 && expert < args.experts ? expert : -1;
}

// counts[warp][expert], all zero before, become the pairs of each warp.
__device__ void CountPairs(const RoutingArgs& args, Range range, int32_t (*counts)[kMaxExperts]) {
  const int lane = threadIdx.x % 32;
#pragma unroll 4
  for (int64_t first = range.begin; first < range.end; first += 32) {
    const int expert = ExpertOf(args, first + lane, range.end);
    const uint32_t peers = __match_any_sync(~0u, expert);
    if (expert >= 0 && lane == __ffs(peers) - 1) {
      counts[threadIdx.x / 32][expert] += __popc(peers);
    }
    __syncwarp();
  }
}

// counts[warp][expert] is the next row of that warp's pairs of an expert.
__device__ void PlacePairs(const RoutingArgs& args, Range range, int32_t (*counts)[kMaxExperts]) {
  const int lane = threadIdx.x % 32;
  int32_t* const next = counts[threadIdx.x / 32];
#pragma unroll 4
  for (int64_t first = range.begin; first < range.end; first += 32) {
    const int64_t pair = first + lane;
    const int expert = ExpertOf(args, pair, range.end);
    const uint32_t peers = __match_any_sync(~0u, expert);
    const int base = expert >= 0 ? next[expert] : 0;
    __syncwarp();
    if (expert >= 0 && lane == __ffs(peers) - 1) next[expert] = base + __popc(peers);
    __syncwarp();
    if (pair >= range.end) continue;
    const int row = expert >= 0 ? base + __popc(peers & ((1u << lane) - 1)) : -1;
    args.slot_row[pair] = row;
    if (expert >= 0) {
      args.row_token[row] = static_cast<int32_t>(pair / args.slots);
      if (args.weights != nullptr) args.row_weight[row] = args.weights[pair];
      if (args.token_scale != nullptr) args.row_scale[row] = args.token_scale[pair / args.slots];
    } else {
      *args.bad_ids = 1;
    }
  }
}

__device__ void ClearCounts(const RoutingArgs& args, int32_t (*counts)[kMaxExperts]) {
  for (int warp = 0; warp < kWarps; ++warp) {
    for (int expert = threadIdx.x; expert < args.experts; expert += kThreads) {
      counts[warp][expert] = 0;
    }
  }
  __syncthreads();
}

// The totals of a thread's four experts become their first rows. The block of `is_writer` writes
// `count` and `start`, and marks the rows between experts, which nobody uses.
__device__ void PlaceExperts(const RoutingArgs& args, const int32_t (&totals)[kThreadExperts],
                             bool is_writer, int32_t (&first)[kThreadExperts]) {
  __shared__ int32_t warp_sums[kWarps];
  const int lane = threadIdx.x % 32;
  int32_t sum = 0;
  for (int i = 0; i < kThreadExperts; ++i) {
    first[i] = sum;
    sum += static_cast<int32_t>(RoundUp(totals[i], kTileRows));
  }
  int32_t inclusive = sum;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int32_t other = __shfl_up_sync(~0u, inclusive, distance);
    if (lane >= distance) inclusive += other;
  }
  if (lane == 31) warp_sums[threadIdx.x / 32] = inclusive;
  __syncthreads();
  int32_t before = inclusive - sum;
  for (int warp = 0; warp < static_cast<int>(threadIdx.x) / 32; ++warp) before += warp_sums[warp];
  for (int i = 0; i < kThreadExperts; ++i) {
    const int expert = threadIdx.x * kThreadExperts + i;
    first[i] += before;
    if (!is_writer || expert >= args.experts) continue;
    args.count[expert] = totals[i];
    args.start[expert] = first[i];
    const int32_t end = first[i] + static_cast<int32_t>(RoundUp(totals[i], kTileRows));
    if (expert == args.experts - 1) args.start[args.experts] = end;
    for (int32_t row = first[i] + totals[i]; row < end; ++row) {
      args.row_token[row] = -1;
      if (args.weights != nullptr) args.row_weight[row] = 0;
    }
  }
}

// counts[warp][expert] become first rows: `first` plus what earlier warps of the block hold.
__device__ void CountsToRows(const RoutingArgs& args, const int32_t (&first)[kThreadExperts],
                             int32_t (*counts)[kMaxExperts]) {
  for (int i = 0; i < kThreadExperts; ++i) {
    const int expert = threadIdx.x * kThreadExperts + i;
    if (expert >= args.experts) break;
    int32_t row = first[i];
    for (int warp = 0; warp < kWarps; ++warp) {
      const int32_t held = counts[warp][expert];
      counts[warp][expert] = row;
      row += held;
    }
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads)
    RouteInOneBlock(const __grid_constant__ RoutingArgs args, int64_t block_pairs) {
  __shared__ int32_t counts[kWarps][kMaxExperts];
  ClearCounts(args, counts);
  const Range range = WarpRange(args, block_pairs);
  CountPairs(args, range, counts);
  __syncthreads();
  int32_t totals[kThreadExperts] = {};
  int32_t first[kThreadExperts];
  for (int i = 0; i < kThreadExperts; ++i) {
    const int expert = threadIdx.x * kThreadExperts + i;
    if (expert >= args.experts) break;
    for (int warp = 0; warp < kWarps; ++warp) totals[i] += counts[warp][expert];
  }
  PlaceExperts(args, totals, true, first);
  CountsToRows(args, first, counts);
  PlacePairs(args, range, counts);
}

// First of two: scratch[block][expert] = pairs of a block.
__global__ void __launch_bounds__(kThreads)
    CountBlocks(const __grid_constant__ RoutingArgs args, int64_t block_pairs) {
  __shared__ int32_t counts[kWarps][kMaxExperts];
  ClearCounts(args, counts);
  CountPairs(args, WarpRange(args, block_pairs), counts);
  __syncthreads();
  for (int expert = threadIdx.x; expert < args.experts; expert += kThreads) {
    int32_t total = 0;
    for (int warp = 0; warp < kWarps; ++warp) total += counts[warp][expert];
    args.scratch[blockIdx.x * kMaxExperts + expert] = total;
  }
}

// Second: every block adds up the counts of all, and places its own pairs.
__global__ void __launch_bounds__(kThreads)
    PlaceBlocks(const __grid_constant__ RoutingArgs args, int64_t block_pairs) {
  __shared__ int32_t counts[kWarps][kMaxExperts];
  ClearCounts(args, counts);
  const Range range = WarpRange(args, block_pairs);
  CountPairs(args, range, counts);
  static_assert(kThreadExperts == 4);
  int4 total = {0, 0, 0, 0};
  int4 before = {0, 0, 0, 0};  // of earlier blocks
  if (static_cast<int>(threadIdx.x) * kThreadExperts < args.experts) {
    const int4* const of_blocks = reinterpret_cast<const int4*>(args.scratch) + threadIdx.x;
#pragma unroll 16
    for (int block = 0; block < static_cast<int>(gridDim.x); ++block) {
      const int4 held = of_blocks[block * (kMaxExperts / 4)];
      if (block == static_cast<int>(blockIdx.x)) before = total;
      total = {total.x + held.x, total.y + held.y, total.z + held.z, total.w + held.w};
    }
  }
  int32_t totals[kThreadExperts] = {total.x, total.y, total.z, total.w};
  int32_t first[kThreadExperts];
  for (int i = 0; i < kThreadExperts; ++i) {
    if (static_cast<int>(threadIdx.x) * kThreadExperts + i >= args.experts) totals[i] = 0;
  }
  PlaceExperts(args, totals, blockIdx.x == 0, first);
  first[0] += before.x;
  first[1] += before.y;
  first[2] += before.z;
  first[3] += before.w;
  CountsToRows(args, first, counts);
  PlacePairs(args, range, counts);
}

}  // namespace

int64_t RowSpaceRows(int64_t pairs, int64_t experts) {
  return RoundUp(pairs + (kTileRows - 1) * std::min(pairs, experts), kTileRows);
}

absl::Status Route(const RoutingArgs& args, cudaStream_t stream) {
  const int64_t pairs = static_cast<int64_t>(args.tokens) * args.slots;
  if (args.experts < 1 || args.experts > kMaxExperts || args.tokens < 0 || args.slots < 1 ||
      RowSpaceRows(pairs, args.experts) > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("cannot route ", args.tokens, " tokens to ",
                                                   args.slots, " of ", args.experts, " experts"));
  }
  const int64_t block_pairs = RoundUp(
      std::max<int64_t>(kMinPairs, (pairs + kRoutingBlocks - 1) / kRoutingBlocks), kThreads);
  const int blocks = static_cast<int>((pairs + block_pairs - 1) / block_pairs);
  if (blocks <= 1) {
    RouteInOneBlock<<<1, kThreads, 0, stream>>>(args, block_pairs);
    return LaunchStatus("routing");
  }
  CountBlocks<<<blocks, kThreads, 0, stream>>>(args, block_pairs);
  WL_RETURN_IF_ERROR(LaunchStatus("routing: counting"));
  PlaceBlocks<<<blocks, kThreads, 0, stream>>>(args, block_pairs);
  return LaunchStatus("routing: placing");
}

}  // namespace warpline::cuda
