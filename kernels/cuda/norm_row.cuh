// The norm of a row that a block of kNormThreads holds in its registers. Device code.
#pragma once

#include <stdint.h>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/half_math.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/row_scale.cuh"

namespace warpline::cuda {

// A thread's values: runs of four, kNormThreads runs apart.
template <int kRuns>
struct HeldRow {
  float4 v[kRuns];
};

__device__ __forceinline__ int HeldRun(int i) {
  return static_cast<int>(threadIdx.x) + i * kNormThreads;
}

template <int kRuns>
__device__ __forceinline__ HeldRow<kRuns> LoadHeld(const float* row, int64_t width) {
  HeldRow<kRuns> held;
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    held.v[i] = 4 * HeldRun(i) < width ? reinterpret_cast<const float4*>(row)[HeldRun(i)]
                                       : make_float4(0, 0, 0, 0);
  }
  return held;
}

// Stores what `args` asks for, of row `row`, whose values `x` are; zeros beyond the width.
template <int kRuns>
__device__ __forceinline__ void NormHeldRow(const NormArgs& args, int64_t row,
                                            const HeldRow<kRuns>& gamma, HeldRow<kRuns>& x) {
  const int runs = static_cast<int>(args.in.width) / 4;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    sum = fmaf(x.v[i].x, x.v[i].x, sum);
    sum = fmaf(x.v[i].y, x.v[i].y, sum);
    sum = fmaf(x.v[i].z, x.v[i].z, sum);
    sum = fmaf(x.v[i].w, x.v[i].w, sum);
  }
  const float mean = BlockSum<kNormThreads>(sum) / static_cast<float>(args.in.width);
  const float factor = 1 / sqrtf(mean + args.eps);
  float4* const y = reinterpret_cast<float4*>(args.out.data + row * args.out.stride);
  float peak = 0;
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    float4& v = x.v[i];
    const float4 g = args.gamma == nullptr ? make_float4(1, 1, 1, 1) : gamma.v[i];
    v = make_float4(v.x * factor * g.x, v.y * factor * g.y, v.z * factor * g.z, v.w * factor * g.w);
    if (HeldRun(i) >= runs) continue;
    if (args.accumulate) {
      const float4 old = y[HeldRun(i)];
      v = make_float4(v.x + old.x, v.y + old.y, v.z + old.z, v.w + old.w);
    }
    y[HeldRun(i)] = v;
    peak = fmaxf(peak, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
  }
  if (args.halves == nullptr) return;
  const int exponent = ScaleExponent(BlockMax<kNormThreads>(peak));
  const float scale = PowerOfTwo(exponent);
  if (threadIdx.x == 0) args.row_scale[row] = PowerOfTwo(-exponent);
  const int padded_runs = static_cast<int>(RoundUp(args.in.width, kPadK)) / 4;
  uint2* const halves = reinterpret_cast<uint2*>(args.halves) + row * padded_runs;
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    if (HeldRun(i) >= padded_runs) continue;
    const float4 v = x.v[i];
    halves[HeldRun(i)] = HeldRun(i) < runs ? make_uint2(PackFloats(v.x * scale, v.y * scale),
                                                        PackFloats(v.z * scale, v.w * scale))
                                           : make_uint2(0, 0);
  }
}

}  // namespace warpline::cuda
