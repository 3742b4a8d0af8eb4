// The machine instructions of the warp-level expert kernels, and the small steps that they share.
// Device code only; each function says from which compute capability on it exists.
#pragma once

#include <stdint.h>

#include "kernels/cuda/async_ops.cuh"
#include "kernels/cuda/grouped_args.h"
#include "kernels/cuda/half_math.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/swiglu.cuh"

namespace warpline::cuda {

constexpr int kWarpLanes = 32;

// Copies 16 bytes from global to shared memory; complete after WaitForCopies and a barrier. Where
// the hardware cannot do that in the background (before sm_80) it is complete at once.
__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
#else
  const uint4 value = __ldg(static_cast<const uint4*>(global));
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
#endif
}

// Closes a group of copies; groups complete in their order.
__device__ __forceinline__ void CommitCopies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kLeft of this thread's groups are incomplete.
template <int kLeft>
__device__ __forceinline__ void WaitForCopies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

// Lets the next kernel of the stream start its preparations, if it was launched so (sm_90).
__device__ __forceinline__ void LetNextGridStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the previous kernel of the stream has ended and its writes are visible (sm_90).
__device__ __forceinline__ void WaitForPreviousGrid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void PrefetchToL2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

#if __CUDA_ARCH__ >= 750
// Four 8 x 8 matrices of halves; lane l gives the address of row l % 8 of matrix l / 8. Lane
// 4 * g + t receives of each matrix elements 2 t and 2 t + 1 of row g. (sm_75)
__device__ __forceinline__ void LoadMatrices(uint32_t address, uint32_t (&out)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// Transposes an 8 x 8 matrix of halves: lane 4 * g + t holds elements 2 t, 2 t + 1 of row g.
// (sm_75)
__device__ __forceinline__ uint32_t TransposeMatrix(uint32_t pair) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// sums[16 x 8] += a[16 x 16] * b[16 x 8]. Lane 4 * g + t holds sums of rows g (0, 1) and g + 8 (2,
// 3), columns 2 t and 2 t + 1. (sm_75, there as two halves of k)
__device__ __forceinline__ void MultiplyAdd(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}
#endif  // __CUDA_ARCH__ >= 750

// What undoes the scaling of the sums of one row.
__device__ __forceinline__ float SumScale(const GroupedArgs& args, int row) {
  return args.row_scale == nullptr ? args.weight_scale
                                   : args.weight_scale * __ldg(args.row_scale + row);
}

// One float of a plain output, where they may lie apart or be added.
__device__ __forceinline__ void StoreFloat(const GroupedArgs& args, int64_t row, int column,
                                           float value) {
  const int64_t pitch = args.y_pitch == 0 ? args.out_columns : args.y_pitch;
  float* const y = static_cast<float*>(args.y) + row * pitch + column;
  *y = args.accumulate ? *y + value : value;
}

// silu(gate) * up * args.output_scale of sums that are already scaled. Saturates to the largest
// half and notes that for `row`; NaN stays NaN.
__device__ __forceinline__ float GatedOutput(const GroupedArgs& args, float gate, float up,
                                             int row) {
  const float value = SwiGlu(gate, up) * args.output_scale;
  if (!(fabsf(value) > kLargestHalf)) return value;
  if (args.overflow != nullptr) args.overflow[row] = 1;
  return copysignf(kLargestHalf, value);
}

// Stores eight consecutive sums of one row, columns `column` on, as the plain output: scaled, times
// the row's routing weight, columns beyond the output left out.
__device__ __forceinline__ void StoreOutputs(const GroupedArgs& args, int row, int column,
                                             const float* sums) {
  const float weight = args.row_weight == nullptr ? 1 : __ldg(args.row_weight + row);
  const float scale = SumScale(args, row) * weight;
  float values[8];
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(sums + i);
    values[i] = four.x * scale;
    values[i + 1] = four.y * scale;
    values[i + 2] = four.z * scale;
    values[i + 3] = four.w * scale;
  }
  const int64_t at = static_cast<int64_t>(row) * args.out_columns + column;
  const bool is_aligned = args.out_columns % 8 == 0;
  if (is_aligned && column >= args.out_columns) return;
  if (args.y_is_float) {
    float* const y = static_cast<float*>(args.y) + at;
    if (is_aligned) {
      *reinterpret_cast<float4*>(y) = make_float4(values[0], values[1], values[2], values[3]);
      *reinterpret_cast<float4*>(y + 4) = make_float4(values[4], values[5], values[6], values[7]);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (column + i < args.out_columns) y[i] = values[i];
    }
    return;
  }
  uint16_t* const y = static_cast<uint16_t*>(args.y) + at;
  if (is_aligned) {
    *reinterpret_cast<uint4*>(y) =
        make_uint4(PackFloats(values[0], values[1]), PackFloats(values[2], values[3]),
                   PackFloats(values[4], values[5]), PackFloats(values[6], values[7]));
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (column + i < args.out_columns) y[i] = static_cast<uint16_t>(HalfFromFloat(values[i]));
  }
}

}  // namespace warpline::cuda
