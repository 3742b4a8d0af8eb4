#include "kernels/cuda/combine.cuh"

#include "kernels/cuda/early_launch.h"
#include "kernels/cuda/mma_ops.cuh"

namespace warpline::cuda {
namespace {

constexpr int kThreads = 256;

// One thread: kCount columns of a token.
template <int kCount, bool kFloat>
__global__ void __launch_bounds__(kThreads) CombineRuns(const __grid_constant__ CombineArgs args) {
  const int64_t token = blockIdx.x;
  WaitForPreviousGrid();
  LetNextGridStart();
  for (int column = (blockIdx.y * kThreads + threadIdx.x) * kCount; column < args.columns;
       column += gridDim.y * kThreads * kCount) {
    SlotSum<kCount> sum = SumSlots<kCount, kFloat>(args, token, column);
    if (sum.is_beyond) {
      args.pending.runs[token * args.pending.run_count + column / kCount] = 1;
      *args.pending.any = 1;
      continue;
    }
    AddRest(args, token, column, sum.run);
    StoreFloats(sum.run, args.out + token * args.columns + column);
  }
}

template <int kCount, bool kFloat>
absl::Status Launch(const CombineArgs& args, cudaStream_t stream) {
  const int runs = (args.columns + kCount - 1) / kCount;
  const dim3 grid(args.tokens, (runs + kThreads - 1) / kThreads);
  return LaunchEarly(reinterpret_cast<const void*>(&CombineRuns<kCount, kFloat>), grid, kThreads, 0,
                     args, args.is_early, stream, "combining expert outputs");
}

}  // namespace

absl::Status Combine(const CombineArgs& args, cudaStream_t stream) {
  if (args.tokens == 0 || args.columns == 0) return absl::OkStatus();
  if (RunColumns(args.columns) == 8) {
    return args.y_is_float ? Launch<8, true>(args, stream) : Launch<8, false>(args, stream);
  }
  return args.y_is_float ? Launch<1, true>(args, stream) : Launch<1, false>(args, stream);
}

}  // namespace warpline::cuda
