#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/decode_rows.h"
#include "kernels/quant_decode_blocks.h"
#include "kernels/quant_grids.h"

namespace warpline::cuda {
namespace {

constexpr int kThreads = 64;
constexpr int64_t kMaxGrid = 1 << 20;

// One block of threads a row. Decoders write to the output itself, so no thread needs an array.
template <QuantType kType>
__global__ void __launch_bounds__(kThreads) Decode(const __grid_constant__ DecodeArgs args) {
  using Block = typename BlockOf<kType>::Type;
  constexpr int kValues = Block::kValues;
  const int64_t blocks = args.width / kValues;
  for (int64_t row = blockIdx.x; row < args.row_count; row += gridDim.x) {
    const int64_t source = args.ids == nullptr ? row : args.ids[row];
    const uint8_t* const from = args.blocks + source * blocks * Block::kBytes;
    float* const out = args.out + row * args.out_stride;
    for (int64_t b = threadIdx.x; b < blocks; b += kThreads) {
      float* const values = out + b * kValues;
      Block::Decode(from + b * Block::kBytes, args.grids, values);
      if (args.scale == 1 && args.factor == 1 && args.copies == 1) continue;
      for (int i = 0; i < kValues; ++i) {
        const float value = __fmul_rn(__fmul_rn(values[i], args.scale), args.factor);
        for (int copy = 0; copy < args.copies; ++copy) values[copy * args.width + i] = value;
      }
    }
  }
}

struct DecodeVisitor {
  const DecodeArgs& args;
  cudaStream_t stream;

  template <QuantType kType>
  absl::Status Visit() const {
    if (args.row_count == 0) return absl::OkStatus();
    const auto grid = static_cast<unsigned>(std::min(args.row_count, kMaxGrid));
    Decode<kType><<<grid, kThreads, 0, stream>>>(args);
    return LaunchStatus("decoding rows of a weight");
  }
  absl::Status NotAWeight() const { return absl::InvalidArgumentError("not a weight type"); }
};

}  // namespace

absl::Status DecodeRows(const DecodeArgs& args, cudaStream_t stream) {
  return VisitWeightType(args.type, DecodeVisitor{args, stream});
}

absl::StatusOr<DeviceGrids> DeviceGrids::Create() {
  const QuantGrids& host = HostQuantGrids();
  constexpr size_t kCodes = 16;
  std::vector<uint8_t> bytes;
  bytes.reserve(size_t{64} << 10);
  const auto append = [&bytes](const void* data, size_t size) {
    const size_t offset = bytes.size();  // Sizes are multiples of 16, so all are aligned.
    bytes.resize(offset + size);
    std::memcpy(bytes.data() + offset, data, size);
    return offset;
  };
  const size_t iq2_xxs = append(host.iq2_xxs, sizeof(uint64_t) * kIQ2XXSGridSize);
  const size_t iq2_xs = append(host.iq2_xs, sizeof(uint64_t) * kIQ2XSGridSize);
  const size_t iq2_s = append(host.iq2_s, sizeof(uint64_t) * kIQ2SGridSize);
  const size_t iq3_xxs = append(host.iq3_xxs, sizeof(uint32_t) * kIQ3XXSGridSize);
  const size_t iq3_s = append(host.iq3_s, sizeof(uint32_t) * kIQ3SGridSize);
  const size_t iq1 = append(host.iq1, sizeof(uint64_t) * kIQ1GridSize);
  const size_t iq4 = append(host.iq4_codes, kCodes);
  const size_t fp4 = append(host.fp4_codes, kCodes);
  DeviceGrids result;
  WL_ASSIGN_OR_RETURN(result.memory_, DeviceBuffer::Create(static_cast<int64_t>(bytes.size())));
  const uint8_t* const base = result.memory_.as();
  WL_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(result.memory_.as(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
      "copying the decoders' tables to the device"));
  result.grids_ = {.iq2_xxs = reinterpret_cast<const uint64_t*>(base + iq2_xxs),
                   .iq2_xs = reinterpret_cast<const uint64_t*>(base + iq2_xs),
                   .iq2_s = reinterpret_cast<const uint64_t*>(base + iq2_s),
                   .iq3_xxs = reinterpret_cast<const uint32_t*>(base + iq3_xxs),
                   .iq3_s = reinterpret_cast<const uint32_t*>(base + iq3_s),
                   .iq1 = reinterpret_cast<const uint64_t*>(base + iq1),
                   .iq4_codes = reinterpret_cast<const int8_t*>(base + iq4),
                   .fp4_codes = reinterpret_cast<const int8_t*>(base + fp4)};
  return result;
}

}  // namespace warpline::cuda
