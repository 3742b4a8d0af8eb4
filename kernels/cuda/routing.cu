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

// counts[warp][expert], all zero before, become the pairs of each warp.
__device__ void CountPairs(const RoutingArgs& args, Range range, int32_t (*counts)[kMaxExperts]) {
  const int lane = threadIdx.x % 32;
  for (int64_t first = range.begin; first < range.end; first += 32) {
    const int64_t pair = first + lane;
    const int expert = pair < range.end ? args.expert_ids[pair] : -1;
    const bool is_expert = expert >= 0 && expert < args.experts;
    const uint32_t peers = __match_any_sync(~0u, is_expert ? expert : -1);
    if (is_expert && lane == __ffs(peers) - 1) {
      counts[threadIdx.x / 32][expert] += __popc(peers);
    }
    __syncwarp();
  }
}

// counts[warp][expert] is the next row of that warp's pairs of an expert.
__device__ void PlacePairs(const RoutingArgs& args, Range range, int32_t (*counts)[kMaxExperts]) {
  const int lane = threadIdx.x % 32;
  int32_t* const next = counts[threadIdx.x / 32];
  for (int64_t first = range.begin; first < range.end; first += 32) {
    const int64_t pair = first + lane;
    const bool is_pair = pair < range.end;
    const int expert = is_pair ? args.expert_ids[pair] : -1;
    const bool is_expert = expert >= 0 && expert < args.experts;
    const uint32_t peers = __match_any_sync(~0u, is_expert ? expert : -1);
    const int base = is_expert ? next[expert] : 0;
    __syncwarp();
    if (is_expert && lane == __ffs(peers) - 1) next[expert] = base + __popc(peers);
    __syncwarp();
    if (!is_pair) continue;
    const int row = is_expert ? base + __popc(peers & ((1u << lane) - 1)) : -1;
    args.slot_row[pair] = row;
    if (is_expert) {
      args.row_token[row] = static_cast<int32_t>(pair / args.slots);
      if (args.weights != nullptr) args.row_weight[row] = args.weights[pair];
    } else {
      *args.bad_ids = 1;
    }
  }
}

__device__ void ClearCounts(int32_t (*counts)[kMaxExperts]) {
  for (int i = threadIdx.x; i < kWarps * kMaxExperts; i += kThreads) counts[0][i] = 0;
  __syncthreads();
}

// Writes `count` and `start` from totals[], the rows of a thread's four experts; `first` gets where
// those begin.
__device__ void PlaceExperts(const RoutingArgs& args, const int32_t (&totals)[kThreadExperts],
                             int32_t (&first)[kThreadExperts]) {
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
    if (expert >= args.experts) continue;
    args.count[expert] = totals[i];
    args.start[expert] = first[i];
    if (expert == args.experts - 1) {
      args.start[args.experts] = first[i] + static_cast<int32_t>(RoundUp(totals[i], kTileRows));
    }
  }
}

// counts[warp][expert] become first rows: `first` plus what earlier warps of the block hold.
__device__ void CountsToRows(int expert, int32_t first, int32_t (*counts)[kMaxExperts]) {
  for (int warp = 0; warp < kWarps; ++warp) {
    const int32_t held = counts[warp][expert];
    counts[warp][expert] = first;
    first += held;
  }
}

__global__ void __launch_bounds__(kThreads)
    RouteInOneBlock(const __grid_constant__ RoutingArgs args, int64_t block_pairs) {
  __shared__ int32_t counts[kWarps][kMaxExperts];
  ClearCounts(counts);
  const Range range = WarpRange(args, block_pairs);
  CountPairs(args, range, counts);
  __syncthreads();
  int32_t totals[kThreadExperts];
  int32_t first[kThreadExperts];
  for (int i = 0; i < kThreadExperts; ++i) {
    totals[i] = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      totals[i] += counts[warp][threadIdx.x * kThreadExperts + i];
    }
  }
  PlaceExperts(args, totals, first);
  for (int i = 0; i < kThreadExperts; ++i) {
    CountsToRows(threadIdx.x * kThreadExperts + i, first[i], counts);
  }
  __syncthreads();
  PlacePairs(args, range, counts);
}

// First of three: scratch[block][expert] = pairs of a block.
__global__ void __launch_bounds__(kThreads)
    CountBlocks(const __grid_constant__ RoutingArgs args, int64_t block_pairs) {
  __shared__ int32_t counts[kWarps][kMaxExperts];
  ClearCounts(counts);
  CountPairs(args, WarpRange(args, block_pairs), counts);
  __syncthreads();
  for (int expert = threadIdx.x; expert < kMaxExperts; expert += kThreads) {
    int32_t total = 0;
    for (int warp = 0; warp < kWarps; ++warp) total += counts[warp][expert];
    args.scratch[blockIdx.x * kMaxExperts + expert] = total;
  }
}

// Second, one block: the counts of blocks become the first rows of their pairs.
__global__ void __launch_bounds__(kThreads)
    ScanBlocks(const __grid_constant__ RoutingArgs args, int blocks) {
  int4* const of_blocks = reinterpret_cast<int4*>(args.scratch) + threadIdx.x;
  constexpr int kPitch = kMaxExperts / 4;
  static_assert(kThreadExperts == 4);
  int4 sum = {0, 0, 0, 0};
#pragma unroll 8
  for (int block = 0; block < blocks; ++block) {
    const int4 held = of_blocks[block * kPitch];
    sum = {sum.x + held.x, sum.y + held.y, sum.z + held.z, sum.w + held.w};
  }
  int32_t first[kThreadExperts];
  PlaceExperts(args, {sum.x, sum.y, sum.z, sum.w}, first);
  int4 row = {first[0], first[1], first[2], first[3]};
#pragma unroll 8
  for (int block = 0; block < blocks; ++block) {
    const int4 held = of_blocks[block * kPitch];
    of_blocks[block * kPitch] = row;
    row = {row.x + held.x, row.y + held.y, row.z + held.z, row.w + held.w};
  }
}

// Third.
__global__ void __launch_bounds__(kThreads)
    PlaceBlocks(const __grid_constant__ RoutingArgs args, int64_t block_pairs) {
  __shared__ int32_t counts[kWarps][kMaxExperts];
  ClearCounts(counts);
  const Range range = WarpRange(args, block_pairs);
  CountPairs(args, range, counts);
  __syncthreads();
  for (int expert = threadIdx.x; expert < kMaxExperts; expert += kThreads) {
    CountsToRows(expert, args.scratch[blockIdx.x * kMaxExperts + expert], counts);
  }
  __syncthreads();
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
  ScanBlocks<<<1, kThreads, 0, stream>>>(args, blocks);
  WL_RETURN_IF_ERROR(LaunchStatus("routing: scanning"));
  PlaceBlocks<<<blocks, kThreads, 0, stream>>>(args, block_pairs);
  return LaunchStatus("routing: placing");
}

}  // namespace warpline::cuda
