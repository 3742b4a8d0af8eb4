#include <cuda_runtime_api.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/repack.h"

namespace warpline::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kMaxBlocks = 1 << 20;

// One warp a piece, one lane the bytes of its lane: no two write the same byte.
template <QuantType kType>
__global__ void __launch_bounds__(kThreads)
    Repack(const __grid_constant__ RepackArgs args, int64_t pieces) {
  const int64_t first = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  for (int64_t piece = first; piece < pieces; piece += int64_t{gridDim.x} * kWarps) {
    RepackLane<kType>(args, piece, static_cast<int>(threadIdx.x % 32));
  }
}

struct LaunchVisitor {
  const RepackArgs& args;
  cudaStream_t stream;

  template <QuantType kType>
  absl::Status Visit() const {
    const int64_t pieces = PieceCount(WeightFormat<kType>::kShape, args);
    if (pieces == 0) return absl::OkStatus();
    const int64_t blocks = std::min((pieces + kWarps - 1) / kWarps, kMaxBlocks);
    Repack<kType><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args, pieces);
    return LaunchStatus(absl::StrCat("packing weights of type ", InfoOf(kType).name));
  }
  absl::Status NotAWeight() const { return absl::InvalidArgumentError("not a weight type"); }
};

}  // namespace

absl::Status LaunchRepack(QuantType type, const RepackArgs& args, cudaStream_t stream) {
  return VisitWeightType(type, LaunchVisitor{args, stream});
}

}  // namespace warpline::cuda
