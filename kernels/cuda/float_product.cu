#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/early_launch.h"
#include "kernels/cuda/float_product.h"
#include "kernels/cuda/float_tiles.h"
#include "kernels/cuda/mma_ops.cuh"

namespace warpline::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kLaneK = 4;  // consecutive values of a lane
constexpr int kStepK = 32 * kLaneK;
constexpr int kMaxGridY = 65535;

// Four values from `k` on, zeros beyond the end. kAligned: rows are 16-byte aligned.
template <bool kAligned>
__device__ __forceinline__ float4 LoadFour(const float* row, int k, int end) {
  if constexpr (kAligned) {
    return k < end ? *reinterpret_cast<const float4*>(row + k) : make_float4(0, 0, 0, 0);
  }
  return make_float4(k < end ? row[k] : 0, k + 1 < end ? row[k + 1] : 0,
                     k + 2 < end ? row[k + 2] : 0, k + 3 < end ? row[k + 3] : 0);
}

__device__ __forceinline__ void AddFour(const float4& w, const float4& x, float& sum) {
  sum = fmaf(w.x, x.x, sum);
  sum = fmaf(w.y, x.y, sum);
  sum = fmaf(w.z, x.z, sum);
  sum = fmaf(w.w, x.w, sum);
}

// One warp for kColumns columns of kRows rows.
template <int kColumns, int kRows, bool kAligned>
__global__ void __launch_bounds__(32 * kWarps)
    Product(const __grid_constant__ FloatProductArgs args) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_column =
      (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x / 32)) * kColumns;
  if (first_column >= args.columns) return;
  if constexpr (kColumns == 1) {
    // The weights may be on their way while the kernel before ends.
    if (args.experts == nullptr) {
      const float* const row = args.weights + static_cast<int64_t>(first_column) * args.k;
      for (int k = lane * kLaneK; k < args.k; k += kStepK) PrefetchToL2(row + k);
    }
  }
  WaitForPreviousGrid();
  LetNextGridStart();
  for (int first_row = static_cast<int>(blockIdx.y) * kRows; first_row < args.rows;
       first_row += static_cast<int>(gridDim.y) * kRows) {
    const int expert = args.experts == nullptr ? 0 : args.experts[first_row];
    const float* const matrix = args.weights + expert * args.expert_stride;
    const float* w[kColumns];
    const float* x[kRows];
    // Beyond the end the last column or row is computed again; it is not stored.
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      w[c] = matrix + static_cast<int64_t>(min(first_column + c, args.columns - 1)) * args.k;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      x[r] = args.x + min(first_row + r, args.rows - 1) / args.rows_per_source * args.x_stride;
    }
    float sums[kRows][kColumns] = {};
    for (int k = lane * kLaneK; k < args.k; k += kStepK) {
      float4 weights[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) weights[c] = LoadFour<kAligned>(w[c], k, args.k);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 values = LoadFour<kAligned>(x[r], k, args.k);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) AddFour(weights[c], values, sums[r][c]);
      }
    }
    const float scale = args.expert_scales == nullptr ? 1 : args.expert_scales[expert];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const float sum = WarpSum(sums[r][c]) * scale;
        if (lane == 0 && first_row + r < args.rows && first_column + c < args.columns) {
          args.y[(first_row + r) * args.y_stride + first_column + c] = sum;
        }
      }
    }
  }
}

template <int kColumns, int kRows>
absl::Status Launch(const FloatProductArgs& args, cudaStream_t stream) {
  constexpr int kBlockColumns = kColumns * kWarps;
  const dim3 grid(static_cast<unsigned>((args.columns + kBlockColumns - 1) / kBlockColumns),
                  static_cast<unsigned>(std::min((args.rows + kRows - 1) / kRows, kMaxGridY)));
  const bool is_aligned = args.k % kLaneK == 0 && args.x_stride % kLaneK == 0 &&
                          args.expert_stride % kLaneK == 0 &&
                          reinterpret_cast<uintptr_t>(args.x) % 16 == 0 &&
                          reinterpret_cast<uintptr_t>(args.weights) % 16 == 0;
  const void* const kernel = is_aligned
                                 ? reinterpret_cast<const void*>(&Product<kColumns, kRows, true>)
                                 : reinterpret_cast<const void*>(&Product<kColumns, kRows, false>);
  return LaunchEarly(kernel, grid, 32 * kWarps, 0, args, args.is_early, stream,
                     "a product of floats");
}

}  // namespace

absl::Status FloatProduct(const FloatProductArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.columns == 0) return absl::OkStatus();
  if (TakesFloatTiles(args)) return FloatTiles(args, stream);
  // Shapes of equal bits: the sums of a row and column are the same in each.
  constexpr int kManyRows = 64;
  if (args.experts != nullptr || args.rows == 1) return Launch<1, 1>(args, stream);
  return args.rows < kManyRows ? Launch<1, 4>(args, stream) : Launch<4, 8>(args, stream);
}

}  // namespace warpline::cuda
