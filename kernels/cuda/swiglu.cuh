// SwiGLU and its rounding to halves, shared by the kernels that store hidden values. Device code.
#pragma once

#include <stdint.h>

#include <cuda_fp16.h>

namespace warpline::cuda {

constexpr float kLargestHalf = 65504;

// Two floats as halves, the largest half where they are beyond it; a NaN stays one.
__device__ __forceinline__ uint32_t PackSaturated(float low, float high) {
#if __CUDA_ARCH__ >= 800
  uint32_t pair;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  // A comparison with a NaN is false, so it passes through.
  const float bounded_low = fabsf(low) > kLargestHalf ? copysignf(kLargestHalf, low) : low;
  const float bounded_high = fabsf(high) > kLargestHalf ? copysignf(kLargestHalf, high) : high;
  const __half2 pair = __floats2half2_rn(bounded_low, bounded_high);
  return *reinterpret_cast<const uint32_t*>(&pair);
#endif
}

// silu(gate) * up; good to a few float ulps.
__device__ __forceinline__ float SwiGlu(float gate, float up) {
  return __fdividef(gate * up, 1.0f + __expf(-gate));
}

}  // namespace warpline::cuda
