#include "kernels/cuda/dequantize.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/repack.h"

namespace warpline::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpLanes = 32;
constexpr int kWarps = kThreads / kWarpLanes;
constexpr int kMaxBlocks = 1024;  // enough for any card; each walks on with this stride

// One warp a piece: each lane writes its eight consecutive values of each group as 16 bytes.
template <QuantType kType>
__global__ void __launch_bounds__(kThreads)
    DequantizeKernel(const __grid_constant__ DequantizeArgs args) {
  using Format = WeightFormat<kType>;
  constexpr PackedShape kShape = Format::kShape;
  __shared__ __align__(16) uint8_t shared[Format::kTableBytes + 16];
  for (int i = static_cast<int>(threadIdx.x) * 16; i < Format::kTableBytes; i += kThreads * 16) {
    *reinterpret_cast<uint4*>(shared + i) =
        __ldg(reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(args.table) + i));
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int g = lane / 4;
  const int slices = args.k / (kShape.groups * kGroupK);
  const int pieces = args.row_blocks * slices;
  const int warps = static_cast<int>(gridDim.x) * kWarps;
  const int first_piece = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) / kWarpLanes;
  for (int piece = first_piece; piece < pieces; piece += warps) {
    const int row_block = piece / slices;
    const int slice = piece % slices;
    const uint8_t* const packed = args.packed + row_block * RowBlockBytes(kShape, args.k);
    const auto registers =
        Format::Load(packed + SliceOffset(kShape, slice),
                     packed + SliceOffset(kShape, slice & ~1) + 2 * kShape.slice_bytes, lane);
    const int k = slice * kShape.groups * kGroupK + lane % 4 * 8;
    const int first = args.is_gate_up ? row_block * 8 + g : row_block * kRowBlock + g;
    const int second = first + (args.is_gate_up ? args.row_blocks * 8 : 8);
#pragma unroll
    for (int group = 0; group < kShape.groups; ++group) {
      uint32_t a[4];
      uint32_t b[4];
      Format::Decode(registers, shared, group, a, b);
      uint16_t* const out = args.out + k + group * kGroupK;
      *reinterpret_cast<uint4*>(out + static_cast<int64_t>(first) * args.k) =
          make_uint4(a[0], a[2], b[0], b[2]);
      *reinterpret_cast<uint4*>(out + static_cast<int64_t>(second) * args.k) =
          make_uint4(a[1], a[3], b[1], b[3]);
    }
  }
}

struct LaunchVisitor {
  const DequantizeArgs& args;
  cudaStream_t stream;

  template <QuantType kType>
  absl::Status Visit() const {
    constexpr PackedShape kShape = WeightFormat<kType>::kShape;
    const int64_t pieces = int64_t{args.row_blocks} * args.k / (kShape.groups * kGroupK);
    const int64_t blocks = std::min<int64_t>((pieces + kWarps - 1) / kWarps, kMaxBlocks);
    if (blocks == 0) return absl::OkStatus();
    DequantizeKernel<kType><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
    return LaunchStatus(absl::StrCat("decoding weights of type ", InfoOf(kType).name));
  }
  absl::Status NotAWeight() const { return absl::InvalidArgumentError("not a weight type"); }
};

}  // namespace

absl::Status Dequantize(const DequantizeArgs& args, cudaStream_t stream) {
  return VisitWeightType(args.type, LaunchVisitor{args, stream});
}

}  // namespace warpline::cuda
