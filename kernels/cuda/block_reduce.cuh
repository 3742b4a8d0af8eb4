// Reductions over a warp or a block, in an order that depends on nothing but the thread count.
// Device code.
#pragma once

#include <stdint.h>

namespace warpline::cuda {

__device__ __forceinline__ float WarpSum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  return value;
}

// A NaN loses to any number.
__device__ __forceinline__ float WarpMax(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
  }
  return value;
}

// All threads of a block of kThreads take part and get the result. Not twice without a barrier in
// between.
template <int kThreads>
__device__ __forceinline__ float BlockSum(float value) {
  __shared__ float parts[kThreads / 32];
  value = WarpSum(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) sum += parts[warp];
  return sum;
}

template <int kThreads>
__device__ __forceinline__ float BlockMax(float value) {
  __shared__ float parts[kThreads / 32];
  value = WarpMax(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float largest = parts[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) largest = fmaxf(largest, parts[warp]);
  return largest;
}

}  // namespace warpline::cuda
