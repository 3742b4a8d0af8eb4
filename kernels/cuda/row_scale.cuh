// The power of two by which a row of activations is brought into the range of halves. Device code.
#pragma once

#include <stdint.h>

namespace warpline::cuda {

// The exponent of the power of two that brings `peak` into [2^14, 2^15); within -100 and 100.
__device__ __forceinline__ int ScaleExponent(float peak) {
  if (peak == 0) return 0;
  const int exponent = static_cast<int>(__float_as_uint(peak) >> 23) - 127;
  return max(-100, min(100, 14 - exponent));
}

__device__ __forceinline__ float PowerOfTwo(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23);
}

}  // namespace warpline::cuda
