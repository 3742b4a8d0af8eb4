// Small device functions of the attention kernels.
#pragma once

#include <stdint.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/half_math.h"

namespace warpline::cuda {

// What a masked score is: finite, so that differences of two are not NaN.
constexpr float kMaskedScore = -1e30f;
constexpr float kLog2E = 1.4426950408889634f;

// 2^x; 0 far below.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The output of one value: by the sigmoid of its gate, where there is one.
__device__ __forceinline__ float GatedBy(const AttentionJob& job, int row, int column,
                                         float value) {
  if (job.gate == nullptr) return value;
  return value / (1.0f + expf(-job.gate[row * job.gate_stride + column]));
}

// One value of the output, and of the halves where they are wanted.
__device__ __forceinline__ void StoreOut(const AttentionJob& job, int row, int column,
                                         float value) {
  const float out = GatedBy(job, row, column, value);
  job.out[row * job.out_stride + column] = out;
  if (job.halves != nullptr) {
    const int64_t width = int64_t{job.n_head} * job.cache.layout.head_dim;
    job.halves[row * width + column] = static_cast<uint16_t>(HalfFromFloat(out));
  }
}

// The first position that a row at `position` sees.
__device__ __forceinline__ int FirstSeen(const AttentionJob& job, int position) {
  return job.window > 0 ? max(0, position - job.window + 1) : 0;
}

// Two int8 values as a pair of halves. `turned` holds them with their sign bits turned: each such
// byte behind the high byte of the half 1,024 is 1,024 + 128 + the value.
__device__ __forceinline__ uint32_t HalvesOfTurned(uint32_t turned, uint32_t selector) {
  constexpr uint32_t k1024 = 0x64646464;
  constexpr uint32_t kMinus1152 = 0xE480E480;
  return Add2(Permute(turned, k1024, selector), kMinus1152);
}
constexpr uint32_t kSignBits = 0x80808080;  // turned before HalvesOfTurned
constexpr uint32_t kBytes01 = 0x4140;       // selectors: which two bytes
constexpr uint32_t kBytes23 = 0x4342;
constexpr uint32_t kBytes02 = 0x4240;
constexpr uint32_t kBytes13 = 0x4341;

}  // namespace warpline::cuda
