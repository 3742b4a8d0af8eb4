#include "kernels/cuda/few_routing.h"

#include "absl/strings/str_cat.h"
#include "kernels/cuda/early_launch.h"
#include "kernels/cuda/few_rows.h"
#include "kernels/cuda/mma_ops.cuh"
#include "kernels/cuda/top_experts.cuh"

namespace warpline::cuda {
namespace {

// One thread for each pair, and then for each expert: blocks of two sizes.
constexpr int kMostThreads = 1024;
constexpr int kFewThreads = 256;
static_assert(kMostThreads == kMaxExperts && kMostThreads == kFewRoutingPairs);

// The sum of `value` over the threads before this one; `total` gets the sum over all.
template <int kThreads>
__device__ __forceinline__ int SumBefore(int value, int& total) {
  constexpr int kWarps = kThreads / kWarpLanes;
  __shared__ int sums[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  int inclusive = value;
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const int other = __shfl_up_sync(~0u, inclusive, distance);
    if (lane >= distance) inclusive += other;
  }
  if (lane == kWarpLanes - 1) sums[warp] = inclusive;
  __syncthreads();
  int before = lane < warp ? sums[lane] : 0;
  total = lane < kWarps ? sums[lane] : 0;
  for (int distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    before += __shfl_xor_sync(~0u, before, distance);
    total += __shfl_xor_sync(~0u, total, distance);
  }
  return before + inclusive - value;
}

// kPerLane: 0 where the experts have been chosen, else of which size a lane's share of them is at
// most.
template <int kThreads, int kPerLane>
__global__ void __launch_bounds__(kThreads) RouteFewPairs(const __grid_constant__ FewRouting job) {
  constexpr int kWarps = kThreads / kWarpLanes;
  const RoutingArgs& args = job.routing;
  const FewTiles& tiles = job.tiles;
  __shared__ __align__(16) uint8_t counts[kWarps][kThreads];  // pairs of each warp
  __shared__ int16_t first_tile[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpLanes;
  const int warp = thread / kWarpLanes;
  const int pairs = args.tokens * args.slots;
  const int warps = (pairs + kWarpLanes - 1) / kWarpLanes;  // that have pairs
  for (int i = thread * 16; i < warps * kThreads; i += kThreads * 16) {
    *reinterpret_cast<uint4*>(&counts[0][i]) = make_uint4(0, 0, 0, 0);
  }
  WaitForPreviousGrid();
  LetNextGridStart();
  if constexpr (kPerLane > 0) {
    for (int token = warp; token < args.tokens; token += kWarps) {
      ChooseExperts<kPerLane>(job.top, token, lane);
    }
    __syncthreads();
  }
  const bool is_pair = thread < pairs;
  const int expert = is_pair ? args.expert_ids[thread] : -1;
  const bool is_expert = expert >= 0 && expert < args.experts;
  __syncthreads();  // The counts are clear.
  const uint32_t peers = __match_any_sync(~0u, is_expert ? expert : -1);
  int rank = __popc(peers & ((1u << lane) - 1));
  if (is_expert && rank == 0) counts[warp][expert] = static_cast<uint8_t>(__popc(peers));
  __syncthreads();
  if (is_expert) {
    for (int w = 0; w < warp; ++w) rank += counts[w][expert];
  }

  // From here on a thread also stands for the expert of its number.
  int rows = 0;
  for (int w = 0; w < warps; ++w) rows += counts[w][thread];
  int tile_count;
  const int tile = SumBefore<kThreads>((rows + kFewRowsN - 1) / kFewRowsN, tile_count);
  first_tile[thread] = static_cast<int16_t>(tile);
  for (int done = 0; done < rows; done += kFewRowsN) {
    const int index = tile + done / kFewRowsN;
    tiles.items[index] = {thread, 0, index * kFewRowsN, min(kFewRowsN, rows - done)};
  }
  if (thread < args.experts) {
    args.count[thread] = rows;
    args.start[thread] = tile * kFewRowsN;
  }
  if (thread == 0) {
    args.start[args.experts] = tile_count * kFewRowsN;
    *tiles.item_count = tile_count;
  }
  if (tiles.overflow != nullptr && thread < tile_count) {
    *reinterpret_cast<uint2*>(tiles.overflow + thread * kFewRowsN) = make_uint2(0, 0);
  }
  __syncthreads();  // All first tiles are known.
  if (!is_pair) return;
  const int row = is_expert ? first_tile[expert] * kFewRowsN + rank : -1;
  args.slot_row[thread] = row;
  if (is_expert) {
    args.row_token[row] = thread / args.slots;
    if (args.weights != nullptr) args.row_weight[row] = args.weights[thread];
    if (args.token_scale != nullptr) args.row_scale[row] = args.token_scale[thread / args.slots];
  } else {
    *args.bad_ids = 1;
  }
}

// A lane holds 1/32 of the experts, of which there are no more than threads.
template <int kThreads>
const void* KernelFor(const FewRouting& job) {
  if (job.top.logits == nullptr) return reinterpret_cast<const void*>(&RouteFewPairs<kThreads, 0>);
  if (job.routing.experts <= 128) return reinterpret_cast<const void*>(&RouteFewPairs<kThreads, 4>);
  if (kThreads == kFewThreads || job.routing.experts <= 256) {
    return reinterpret_cast<const void*>(&RouteFewPairs<kThreads, 8>);
  }
  if constexpr (kThreads > kFewThreads) {
    if (job.routing.experts <= 512) {
      return reinterpret_cast<const void*>(&RouteFewPairs<kThreads, 16>);
    }
    return reinterpret_cast<const void*>(&RouteFewPairs<kThreads, 32>);
  }
  return nullptr;
}

}  // namespace

absl::Status RouteFew(const FewRouting& job, cudaStream_t stream) {
  const RoutingArgs& args = job.routing;
  const int64_t pairs = int64_t{args.tokens} * args.slots;
  if (args.experts < 1 || args.experts > kMaxExperts || args.tokens < 1 || args.slots < 1 ||
      pairs > kFewRoutingPairs) {
    return absl::InvalidArgumentError(absl::StrCat("cannot route ", args.tokens, " tokens to ",
                                                   args.slots, " of ", args.experts,
                                                   " experts in one block"));
  }
  // Both sizes do the same.
  const bool is_small = pairs <= kFewThreads && args.experts <= kFewThreads;
  const void* const kernel = is_small ? KernelFor<kFewThreads>(job) : KernelFor<kMostThreads>(job);
  return LaunchEarly(kernel, dim3(1), is_small ? kFewThreads : kMostThreads, 0, job, job.is_early,
                     stream, "routing few rows");
}

}  // namespace warpline::cuda
