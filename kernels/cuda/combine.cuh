// The sum of a token's expert outputs, a few columns at a time. Device code.
#pragma once

#include <stdint.h>

#include "kernels/cuda/combine.h"
#include "kernels/cuda/half_math.h"

namespace warpline::cuda {

// Slots whose rows are loaded at once, as registers allow.
template <int kCount>
constexpr int kCombineBatch = kCount == 8 ? 4 : 8;

// kCount consecutive values; aligned where kCount is more than one.
template <int kCount>
struct Run {
  float v[kCount];
};

__device__ __forceinline__ void LoadFloats(const float* from, Run<1>& run) { run.v[0] = *from; }
__device__ __forceinline__ void LoadFloats(const float* from, Run<4>& run) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  run = {four.x, four.y, four.z, four.w};
}
__device__ __forceinline__ void LoadFloats(const float* from, Run<8>& run) {
  const float4 low = reinterpret_cast<const float4*>(from)[0];
  const float4 high = reinterpret_cast<const float4*>(from)[1];
  run = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}
__device__ __forceinline__ void LoadHalves(const uint16_t* from, Run<1>& run) {
  run.v[0] = LowFloat(*from);
}
__device__ __forceinline__ void LoadHalves(const uint16_t* from, Run<4>& run) {
  const uint2 raw = *reinterpret_cast<const uint2*>(from);
  run = {LowFloat(raw.x), HighFloat(raw.x), LowFloat(raw.y), HighFloat(raw.y)};
}
__device__ __forceinline__ void LoadHalves(const uint16_t* from, Run<8>& run) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  run = {LowFloat(raw.x), HighFloat(raw.x), LowFloat(raw.y), HighFloat(raw.y),
         LowFloat(raw.z), HighFloat(raw.z), LowFloat(raw.w), HighFloat(raw.w)};
}
__device__ __forceinline__ void StoreFloats(const Run<1>& run, float* to) { *to = run.v[0]; }
__device__ __forceinline__ void StoreFloats(const Run<4>& run, float* to) {
  *reinterpret_cast<float4*>(to) = {run.v[0], run.v[1], run.v[2], run.v[3]};
}
__device__ __forceinline__ void StoreFloats(const Run<8>& run, float* to) {
  reinterpret_cast<float4*>(to)[0] = {run.v[0], run.v[1], run.v[2], run.v[3]};
  reinterpret_cast<float4*>(to)[1] = {run.v[4], run.v[5], run.v[6], run.v[7]};
}

template <int kCount>
__device__ __forceinline__ void Add(const Run<kCount>& other, Run<kCount>& sum) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum.v[i] += other.v[i];
}

template <int kCount>
__device__ __forceinline__ bool IsFinite(const Run<kCount>& run) {
  bool is_finite = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) is_finite = is_finite && isfinite(run.v[i]);
  return is_finite;
}

// Whether a half that is summed up for these columns is infinite: beyond the largest one.
template <int kCount>
__device__ bool HasInfinite(const CombineArgs& args, const int32_t* rows, int column) {
  for (int slot = 0; slot < args.slots; ++slot) {
    if (rows[slot] < 0) continue;
    Run<kCount> y;
    LoadHalves(static_cast<const uint16_t*>(args.y) +
                   static_cast<int64_t>(rows[slot]) * args.columns + column,
               y);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (isinf(y.v[i])) return true;
    }
  }
  return false;
}

// Columns `column` on of a token, from all its slots.
template <int kCount>
struct SlotSum {
  Run<kCount> run;
  bool is_beyond;  // halves, so that it is not the sum
};
template <int kCount, bool kFloat>
__device__ __forceinline__ SlotSum<kCount> SumSlots(const CombineArgs& args, int64_t token,
                                                    int column) {
  const int32_t* const rows = args.slot_row + token * args.slots;
  SlotSum<kCount> sum = {};
  for (int first = 0; first < args.slots; first += kCombineBatch<kCount>) {
    Run<kCount> y[kCombineBatch<kCount>];
#pragma unroll
    for (int i = 0; i < kCombineBatch<kCount>; ++i) {
      y[i] = {};
      const int row = first + i < args.slots ? rows[first + i] : -1;
      if (row < 0) continue;
      if (args.overflow != nullptr) sum.is_beyond |= args.overflow[row] != 0;
      const int64_t at = static_cast<int64_t>(row) * args.columns + column;
      if constexpr (kFloat) {
        LoadFloats(static_cast<const float*>(args.y) + at, y[i]);
      } else {
        LoadHalves(static_cast<const uint16_t*>(args.y) + at, y[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kCombineBatch<kCount>; ++i) Add(y[i], sum.run);
  }
  if constexpr (!kFloat) {
    if (args.overflow != nullptr && !IsFinite(sum.run)) {
      sum.is_beyond |= HasInfinite<kCount>(args, rows, column);
    }
  }
  return sum;
}

// Adds what a token gets beside its slots.
template <int kCount>
__device__ __forceinline__ void AddRest(const CombineArgs& args, int64_t token, int column,
                                        Run<kCount>& sum) {
  const int64_t at = token * args.columns + column;
  Run<kCount> addend;
  if (args.shared != nullptr) {
    LoadFloats(args.shared + at, addend);
    Add(addend, sum);
  }
  if (args.residual != nullptr) {
    LoadFloats(args.residual + at, addend);
    Add(addend, sum);
  }
}

}  // namespace warpline::cuda
