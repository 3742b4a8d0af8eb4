#include "kernels/cuda/top_experts.cuh"

#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/routing.h"

namespace warpline::cuda {
namespace {

constexpr int kWarps = 4;

// One warp a row.
template <int kPerLane>
__global__ void __launch_bounds__(32 * kWarps) Top(const __grid_constant__ TopExpertsArgs args) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row < args.rows) ChooseExperts<kPerLane>(args, row, static_cast<int>(threadIdx.x % 32));
}

}  // namespace

absl::Status TopExperts(const TopExpertsArgs& args, cudaStream_t stream) {
  if (args.experts < 1 || args.experts > kMaxExperts || args.used < 1 || args.used > args.experts) {
    return absl::InvalidArgumentError(absl::StrCat(args.used, " of ", args.experts, " experts"));
  }
  if (args.rows == 0) return absl::OkStatus();
  const auto grid = static_cast<unsigned>((args.rows + kWarps - 1) / kWarps);
  if (args.experts <= 128) {
    Top<4><<<grid, 32 * kWarps, 0, stream>>>(args);
  } else if (args.experts <= 512) {
    Top<16><<<grid, 32 * kWarps, 0, stream>>>(args);
  } else {
    Top<32><<<grid, 32 * kWarps, 0, stream>>>(args);
  }
  return LaunchStatus("choosing experts");
}

}  // namespace warpline::cuda
