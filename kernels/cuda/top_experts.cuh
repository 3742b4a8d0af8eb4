// How a warp chooses the experts of one row. Device code.
#pragma once

#include <stdint.h>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/top_experts.h"

namespace warpline::cuda {

constexpr float kLowestSum = 6.103515625e-5f;  // 2^-14

// Larger for what comes first: by probability, then by the lower index. 0 is below all.
__device__ __forceinline__ uint64_t KeyOf(float probability, int expert) {
  const uint32_t size = isnan(probability) ? 1 : __float_as_uint(probability) + 2;
  return static_cast<uint64_t>(size) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(expert));
}
__device__ __forceinline__ int ExpertOf(uint64_t key) {
  return static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(key));
}
__device__ __forceinline__ float ProbabilityOf(uint64_t key) {
  const uint32_t size = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(size == 1 ? 0x7FC00000u : size - 2);
}

// The largest key below `limit` of a lane's experts.
template <int kPerLane>
__device__ __forceinline__ uint64_t BestBelow(const float (&p)[kPerLane], int experts,
                                              uint64_t limit) {
  uint64_t best = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = static_cast<int>(threadIdx.x % 32) + 32 * i;
    const uint64_t key = expert < experts ? KeyOf(p[i], expert) : 0;
    if (key < limit && key > best) best = key;
  }
  return best;
}

// The largest of the lanes' keys.
__device__ __forceinline__ uint64_t LargestKey(uint64_t key) {
#if __CUDA_ARCH__ >= 800
  const uint32_t size = __reduce_max_sync(~0u, static_cast<uint32_t>(key >> 32));
  const bool is_largest = static_cast<uint32_t>(key >> 32) == size;
  const uint32_t rest = __reduce_max_sync(~0u, is_largest ? static_cast<uint32_t>(key) : 0);
  return static_cast<uint64_t>(size) << 32 | rest;
#else
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const uint64_t other = __shfl_xor_sync(~0u, key, distance);
    key = other > key ? other : key;
  }
  return key;
#endif
}

// One row, by one warp; lane l holds experts l, l + 32, ..., kPerLane of them.
template <int kPerLane>
__device__ __forceinline__ void ChooseExperts(const TopExpertsArgs& args, int64_t row, int lane) {
  const float* const logits = args.logits + row * args.experts;
  float p[kPerLane];
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane + 32 * i;
    p[i] = expert < args.experts ? logits[expert] : -INFINITY;
    largest = fmaxf(largest, p[i]);
  }
  largest = WarpMax(largest);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    p[i] = lane + 32 * i < args.experts ? expf(p[i] - largest) : 0;
    sum += p[i];
  }
  sum = WarpSum(sum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) p[i] /= sum;

  int32_t* const ids = args.expert_ids + row * args.used;
  float* const weights = args.weights + row * args.used;
  uint64_t own = BestBelow(p, args.experts, ~uint64_t{0});
  float chosen_sum = 0;
  for (int slot = 0; slot < args.used; ++slot) {
    const uint64_t best = LargestKey(own);
    const int expert = ExpertOf(best);
    const float weight = ProbabilityOf(best);
    if (expert % 32 == lane) own = BestBelow(p, args.experts, best);
    chosen_sum += weight;
    if (lane == 0) {
      ids[slot] = expert;
      weights[slot] = weight;
    }
  }
  __syncwarp();
  const float divisor = !args.renormalise         ? 1
                        : chosen_sum < kLowestSum ? kLowestSum
                                                  : chosen_sum;  // NaN stays NaN
  for (int slot = lane; slot < args.used; slot += 32) {
    const float scale = args.scales == nullptr ? 1 : args.scales[ids[slot]];
    weights[slot] = weights[slot] / divisor * scale;
  }
}

}  // namespace warpline::cuda
