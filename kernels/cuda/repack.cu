#include <cuda_runtime_api.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/raii.h"
#include "kernels/cuda/repack.h"

namespace warpline::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kMaxBlocks = 1 << 20;
constexpr int kMaxAbsBlocks = 2048;

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

// One thread a block of values. Magnitudes compare like the integers of their bits.
template <QuantType kType>
__global__ void __launch_bounds__(kThreads)
    FindMaxAbs(const __grid_constant__ MaxAbsArgs args, int* result) {
  using Block = typename BlockOf<kType>::Type;
  const int64_t expert_blocks = args.expert_values / Block::kValues;
  const int64_t count = expert_blocks * args.experts;
  float most = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    float values[Block::kValues];
    Block::Decode(
        args.blocks + i / expert_blocks * args.expert_bytes + i % expert_blocks * Block::kBytes,
        args.grids, values);
    for (const float value : values) {
      if (isfinite(value)) most = fmaxf(most, fabsf(value));
    }
  }
  most = BlockMax<kThreads>(most);
  if (threadIdx.x == 0) atomicMax(result, __float_as_int(most));
}

struct MaxAbsVisitor {
  const MaxAbsArgs& args;
  int* result;
  cudaStream_t stream;

  template <QuantType kType>
  absl::Status Visit() const {
    if constexpr (HasWeightShift(kType)) {
      FindMaxAbs<kType><<<kMaxAbsBlocks, kThreads, 0, stream>>>(args, result);
      return LaunchStatus("looking for the largest weight");
    } else {
      return absl::OkStatus();
    }
  }
  absl::Status NotAWeight() const { return absl::InvalidArgumentError("not a weight type"); }
};

}  // namespace

absl::Status LaunchRepack(QuantType type, const RepackArgs& args, cudaStream_t stream) {
  return VisitWeightType(type, LaunchVisitor{args, stream});
}

absl::StatusOr<float> MaxAbsOnDevice(const MaxAbsArgs& args, cudaStream_t stream) {
  constexpr absl::string_view kWhat = "looking for the largest weight";
  WL_ASSIGN_OR_RETURN(const DeviceBuffer result, DeviceBuffer::Create(sizeof(float)));
  WL_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(result.as(), 0, sizeof(float), stream), kWhat));
  WL_RETURN_IF_ERROR(VisitWeightType(args.type, MaxAbsVisitor{args, result.as<int>(), stream}));
  float max_abs = 0;
  WL_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(&max_abs, result.as(), sizeof(float), cudaMemcpyDeviceToHost, stream),
      kWhat));
  WL_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), kWhat));
  return max_abs;
}

}  // namespace warpline::cuda
