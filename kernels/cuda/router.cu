#include "kernels/cuda/router.h"

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/early_launch.h"
#include "kernels/cuda/half_math.h"
#include "kernels/cuda/mma_ops.cuh"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/row_scale.cuh"

namespace warpline::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kStep = 4 * kWarpLanes;  // values of k that a warp takes at once

// A row's values of one thread: runs of four, kThreads runs apart.
template <int kRuns>
struct ThreadRow {
  float4 v[kRuns];
};

template <int kRuns>
__device__ __forceinline__ ThreadRow<kRuns> LoadRow(const float* row, int width) {
  ThreadRow<kRuns> values;
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    const int k = 4 * (static_cast<int>(threadIdx.x) + i * kThreads);
    values.v[i] = k < width ? *reinterpret_cast<const float4*>(row + k) : make_float4(0, 0, 0, 0);
  }
  return values;
}

__device__ __forceinline__ void AddSquares(const float4& v, float& sum) {
  sum = fmaf(v.x, v.x, sum);
  sum = fmaf(v.y, v.y, sum);
  sum = fmaf(v.z, v.z, sum);
  sum = fmaf(v.w, v.w, sum);
}
__device__ __forceinline__ float LargestOf(const float4& v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

// The norm's outputs of one row, by the whole block; `values` are normed.
template <int kRuns>
__device__ __forceinline__ void StoreRow(const NormArgs& norm, int64_t row, float peak,
                                         const ThreadRow<kRuns>& values) {
  const int width = static_cast<int>(norm.in.width);
  const int exponent = ScaleExponent(peak);
  const float scale = PowerOfTwo(exponent);
  if (threadIdx.x == 0) norm.row_scale[row] = PowerOfTwo(-exponent);
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    const int k = 4 * (static_cast<int>(threadIdx.x) + i * kThreads);
    if (k >= width) continue;
    const float4 v = values.v[i];
    *reinterpret_cast<float4*>(norm.out.data + row * norm.out.stride + k) = v;
    *reinterpret_cast<uint2*>(norm.halves + row * width + k) =
        make_uint2(PackFloats(v.x * scale, v.y * scale), PackFloats(v.z * scale, v.w * scale));
  }
}

// A block: up to kRows rows, one expert to a warp. kRuns * kThreads runs of four hold a row.
// Grid: [experts / kWarps][rows / kRows]; the first column of blocks stores the norm's outputs.
template <int kRows, int kRuns>
__global__ void __launch_bounds__(kThreads) ScoreNormed(const __grid_constant__ RouterArgs args) {
  extern __shared__ __align__(16) float normed[];  // [kRows][width]
  __shared__ float parts[2][kRows][kWarps];        // sums of squares, and peaks
  const NormArgs& norm = args.norm;
  const int width = static_cast<int>(norm.in.width);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int expert = static_cast<int>(blockIdx.x) * kWarps + warp;
  const float* const weights =
      args.weights + static_cast<int64_t>(min(expert, args.experts - 1)) * width;
  for (int k = 4 * lane; k < width; k += kStep) PrefetchToL2(weights + k);
  const int64_t first = int64_t{blockIdx.y} * kRows;
  const int rows = static_cast<int>(min(int64_t{kRows}, norm.in.row_count - first));
  const ThreadRow<kRuns> gamma =
      norm.gamma == nullptr ? ThreadRow<kRuns>{} : LoadRow<kRuns>(norm.gamma, width);
  WaitForPreviousGrid();
  LetNextGridStart();

  ThreadRow<kRuns> x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r < rows) x[r] = LoadRow<kRuns>(norm.in.data + (first + r) * norm.in.stride, width);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) AddSquares(x[r].v[i], sum);
    sum = WarpSum(sum);
    if (lane == 0) parts[0][r][warp] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += parts[0][r][w];
    const float factor = 1 / sqrtf(sum / static_cast<float>(width) + norm.eps);
    float peak = 0;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      float4& v = x[r].v[i];
      const float4 g = norm.gamma == nullptr ? make_float4(1, 1, 1, 1) : gamma.v[i];
      v = make_float4(v.x * factor * g.x, v.y * factor * g.y, v.z * factor * g.z,
                      v.w * factor * g.w);
      const int k = 4 * (static_cast<int>(threadIdx.x) + i * kThreads);
      if (k < width) *reinterpret_cast<float4*>(normed + r * width + k) = v;
      peak = fmaxf(peak, LargestOf(v));
    }
    peak = WarpMax(peak);
    if (lane == 0) parts[1][r][warp] = peak;
  }
  __syncthreads();

  float sums[kRows] = {};
#pragma unroll 8
  for (int k = 4 * lane; k < width; k += kStep) {
    const float4 w = *reinterpret_cast<const float4*>(weights + k);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 values = *reinterpret_cast<const float4*>(normed + r * width + k);
      sums[r] = fmaf(w.x, values.x, sums[r]);
      sums[r] = fmaf(w.y, values.y, sums[r]);
      sums[r] = fmaf(w.z, values.z, sums[r]);
      sums[r] = fmaf(w.w, values.w, sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = WarpSum(sums[r]);
    if (lane == 0 && r < rows && expert < args.experts) {
      args.logits[(first + r) * args.experts + expert] = sum;
    }
  }
  if (blockIdx.x > 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    float peak = 0;
    for (int w = 0; w < kWarps; ++w) peak = fmaxf(peak, parts[1][r][w]);
    StoreRow(norm, first + r, peak, x[r]);
  }
}

template <int kRows, int kRuns>
absl::Status Launch(const RouterArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((args.experts + kWarps - 1) / kWarps),
                  static_cast<unsigned>((args.norm.in.row_count + kRows - 1) / kRows));
  const int bytes = kRows * static_cast<int>(args.norm.in.width) * 4;
  return LaunchEarly(reinterpret_cast<const void*>(&ScoreNormed<kRows, kRuns>), grid, kThreads,
                     bytes, args, args.norm.is_early, stream, "a router");
}

// A block's rows change who computes them, not how; so do runs beyond the width.
template <int kRuns, int kMostRows>
absl::Status LaunchFor(const RouterArgs& args, cudaStream_t stream) {
  if (args.norm.in.row_count == 1) return Launch<1, kRuns>(args, stream);
  return Launch<kMostRows, kRuns>(args, stream);
}

constexpr int kMaxWidth = 8192;

}  // namespace

bool CanRoute(const NormArgs& norm) {
  const auto is_aligned = [](const FloatRows& rows) {
    return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride % 4 == 0;
  };
  return norm.in.width % kPadK == 0 && norm.in.width <= kMaxWidth && is_aligned(norm.in) &&
         is_aligned(norm.out) && reinterpret_cast<uintptr_t>(norm.gamma) % 16 == 0 &&
         !norm.accumulate && norm.in.row_count <= 65535;
}

// Shared memory holds the rows of a block: 32 KiB at most.
absl::Status Router(const RouterArgs& args, cudaStream_t stream) {
  const int64_t width = args.norm.in.width;
  if (width <= 2048) return LaunchFor<4, 4>(args, stream);
  if (width <= 4096) return LaunchFor<8, 2>(args, stream);
  return LaunchFor<16, 1>(args, stream);
}

}  // namespace warpline::cuda
