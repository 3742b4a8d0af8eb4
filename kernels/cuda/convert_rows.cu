#include <cuda_runtime.h>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/convert_rows.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/early_launch.h"
#include "kernels/cuda/half_math.h"
#include "kernels/cuda/mma_ops.cuh"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/row_scale.cuh"

namespace warpline::cuda {
namespace {

constexpr int kThreads = 256;

// One block a row. Pairs of neighbouring k stay neighbours in both layouts.
__global__ void __launch_bounds__(kThreads) Convert(const __grid_constant__ ConvertArgs args) {
  const int row = static_cast<int>(blockIdx.x);
  const float* const x = args.x + row * args.x_stride;
  float scale = 1;
  WaitForPreviousGrid();
  LetNextGridStart();
  if (args.row_scale != nullptr) {
    float peak = 0;
    for (int k = static_cast<int>(threadIdx.x); k < args.k; k += kThreads) {
      peak = fmaxf(peak, fabsf(x[k]));
    }
    const int exponent = ScaleExponent(BlockMax<kThreads>(peak));
    scale = PowerOfTwo(exponent);
    if (threadIdx.x == 0) args.row_scale[row] = PowerOfTwo(-exponent);
  }
  const int padded = static_cast<int>(RoundUp(args.k, kPadK));
  for (int k = 2 * static_cast<int>(threadIdx.x); k < padded; k += 2 * kThreads) {
    const float low = k < args.k ? x[k] * scale : 0;
    const float high = k + 1 < args.k ? x[k + 1] * scale : 0;
    const uint32_t pair = PackFloats(low, high);
    if (args.tiles != nullptr) {
      *reinterpret_cast<uint32_t*>(args.tiles + TileOffset(row, k, args.row_groups)) = pair;
    } else {
      *reinterpret_cast<uint32_t*>(args.halves + static_cast<int64_t>(row) * padded + k) = pair;
    }
  }
}

__global__ void WriteRowSpace(int32_t rows, int32_t* start, int32_t* count) {
  start[0] = 0;
  start[1] = static_cast<int32_t>(RoundUp(rows, kTileRows));
  count[0] = rows;
}

}  // namespace

absl::Status SetRowSpace(int32_t rows, int32_t* start, int32_t* count, cudaStream_t stream) {
  WriteRowSpace<<<1, 1, 0, stream>>>(rows, start, count);
  return LaunchStatus("describing the rows of a product");
}

absl::Status ConvertRows(const ConvertArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return absl::OkStatus();
  return LaunchEarly(reinterpret_cast<const void*>(&Convert),
                     dim3(static_cast<unsigned>(args.rows)), kThreads, 0, args, args.is_early,
                     stream, "converting activations");
}

}  // namespace warpline::cuda
