#include "kernels/cuda/bench_rig.h"

#include <cmath>
#include <utility>

#include "kernels/cuda/half_math.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/random_blocks.h"
#include "kernels/cuda/routing.h"

namespace warpline::cuda {
namespace {

absl::Status CopyIn(const void* from, size_t bytes, const DeviceBuffer& to) {
  return CudaStatus(cudaMemcpy(to.as(), from, bytes, cudaMemcpyHostToDevice),
                    "copying benchmark operands");
}

// `experts` copies of one matrix's blocks.
std::vector<uint8_t> Repeated(QuantType type, int rows, int k, uint64_t seed) {
  const std::vector<uint8_t> one = RandomBlocks(type, int64_t{rows} * k, seed, 0.05f);
  std::vector<uint8_t> all;
  all.reserve(one.size() * kBenchExperts);
  for (int e = 0; e < kBenchExperts; ++e) all.insert(all.end(), one.begin(), one.end());
  return all;
}

RawExperts RawOf(QuantType type, int rows, int k, const std::vector<uint8_t>& blocks) {
  return {.type = type,
          .experts = kBenchExperts,
          .rows = rows,
          .k = k,
          .blocks = blocks.data(),
          .expert_bytes = RowBytes(type, int64_t{rows} * k)};
}

absl::StatusOr<PackedExperts> CopyPacked(const PackedExperts& from, cudaStream_t stream) {
  PackedExperts to;
  to.type = from.type;
  to.is_gate_up = from.is_gate_up;
  to.experts = from.experts;
  to.rows = from.rows;
  to.out_columns = from.out_columns;
  to.k = from.k;
  to.row_blocks = from.row_blocks;
  to.expert_bytes = from.expert_bytes;
  to.weight_scale = from.weight_scale;
  WL_ASSIGN_OR_RETURN(to.data, DeviceBuffer::Create(from.data.bytes()));
  WL_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(to.data.as(), from.data.as(), static_cast<size_t>(from.data.bytes()),
                      cudaMemcpyDeviceToDevice, stream),
      "copying a layer"));
  return to;
}

}  // namespace

absl::StatusOr<BenchLayer> MakeBenchLayer(QuantType type, cudaStream_t stream) {
  BenchLayer layer;
  {
    const std::vector<uint8_t> gate = Repeated(type, kBenchFf, kBenchWidth, 1);
    const std::vector<uint8_t> up = Repeated(type, kBenchFf, kBenchWidth, 2);
    WL_ASSIGN_OR_RETURN(layer.gate_up, PackGateUp(RawOf(type, kBenchFf, kBenchWidth, gate),
                                                  RawOf(type, kBenchFf, kBenchWidth, up), stream));
  }
  const std::vector<uint8_t> down = Repeated(type, kBenchWidth, kBenchFf, 3);
  WL_ASSIGN_OR_RETURN(layer.down, PackExperts(RawOf(type, kBenchWidth, kBenchFf, down), stream));
  return layer;
}

absl::StatusOr<BenchLayer> CopyLayer(const BenchLayer& layer, cudaStream_t stream) {
  BenchLayer copy;
  WL_ASSIGN_OR_RETURN(copy.gate_up, CopyPacked(layer.gate_up, stream));
  WL_ASSIGN_OR_RETURN(copy.down, CopyPacked(layer.down, stream));
  return copy;
}

absl::StatusOr<BenchBuffers> BenchBuffers::Create() {
  BenchBuffers b;
  const int64_t rows = RowSpaceRows(kBenchPairs, kBenchExperts);
  b.row_groups = static_cast<int32_t>(rows / kTileRows);
  const int64_t slack = int64_t{kSlackRowGroups} * kTileBytes;
  WL_ASSIGN_OR_RETURN(b.x, DeviceBuffer::Create(int64_t{2} * kBenchTokens * kBenchWidth));
  WL_ASSIGN_OR_RETURN(b.expert_ids, DeviceBuffer::Create(int64_t{4} * kBenchPairs));
  WL_ASSIGN_OR_RETURN(b.weights, DeviceBuffer::Create(int64_t{4} * kBenchPairs));
  WL_ASSIGN_OR_RETURN(b.start, DeviceBuffer::Create(4 * (kBenchExperts + 1)));
  WL_ASSIGN_OR_RETURN(b.count, DeviceBuffer::Create(4 * kBenchExperts));
  WL_ASSIGN_OR_RETURN(b.row_token, DeviceBuffer::Create(4 * rows));
  WL_ASSIGN_OR_RETURN(b.slot_row, DeviceBuffer::Create(int64_t{4} * kBenchPairs));
  WL_ASSIGN_OR_RETURN(b.row_weight, DeviceBuffer::Create(4 * rows));
  WL_ASSIGN_OR_RETURN(b.row_scale, DeviceBuffer::Create(4 * rows));
  WL_ASSIGN_OR_RETURN(b.bad_ids, DeviceBuffer::Create(4));
  WL_ASSIGN_OR_RETURN(b.scratch, DeviceBuffer::Create(kRoutingScratchBytes));
  WL_ASSIGN_OR_RETURN(b.x_tiles, DeviceBuffer::Create(2 * rows * kBenchWidth + slack));
  WL_ASSIGN_OR_RETURN(b.h_tiles, DeviceBuffer::Create(2 * rows * kBenchFf + slack));
  WL_ASSIGN_OR_RETURN(b.y, DeviceBuffer::Create(2 * rows * kBenchWidth));
  WL_ASSIGN_OR_RETURN(b.out, DeviceBuffer::Create(int64_t{4} * kBenchTokens * kBenchWidth));

  RandomBits random(9);
  std::vector<uint16_t> x(static_cast<size_t>(kBenchTokens) * kBenchWidth);
  for (uint16_t& value : x) value = static_cast<uint16_t>(HalfFromFloat(random.Normal()));
  WL_RETURN_IF_ERROR(CopyIn(x.data(), x.size() * 2, b.x));
  const std::vector<float> weights(kBenchPairs, 1.0f / kBenchSlots);
  WL_RETURN_IF_ERROR(CopyIn(weights.data(), weights.size() * 4, b.weights));
  WL_RETURN_IF_ERROR(CudaStatus(cudaMemset(b.bad_ids.as(), 0, 4), "clearing a flag"));
  return b;
}

BenchRouting UniformRouting(int rows) {
  BenchRouting routing;
  const int pairs = rows * kBenchExperts;
  routing.tokens = pairs / kBenchSlots;
  for (int i = 0; i < pairs; ++i) {
    // Tokens take runs of neighbouring experts, with a shift that spreads them.
    routing.expert_ids.push_back((i + i / kBenchExperts * 37) % kBenchExperts);
  }
  return routing;
}

BenchRouting RandomRouting(int tokens, double zipf, uint64_t seed) {
  BenchRouting routing{.tokens = tokens};
  RandomBits random(seed);
  std::vector<std::pair<double, int32_t>> keys(kBenchExperts);
  for (int t = 0; t < tokens; ++t) {
    // The smallest of exponential variables with these rates: a draw without replacement.
    for (int e = 0; e < kBenchExperts; ++e) {
      const double uniform = (static_cast<double>(random.Next() >> 11) + 1) * 0x1p-53;
      keys[static_cast<size_t>(e)] = {-std::log(uniform) * std::pow(e + 1, zipf), e};
    }
    std::partial_sort(keys.begin(), keys.begin() + kBenchSlots, keys.end());
    for (int s = 0; s < kBenchSlots; ++s) {
      routing.expert_ids.push_back(keys[static_cast<size_t>(s)].second);
    }
  }
  return routing;
}

absl::Status ApplyRouting(const BenchRouting& routing, const BenchBuffers& b, cudaStream_t stream) {
  WL_RETURN_IF_ERROR(
      CopyIn(routing.expert_ids.data(), routing.expert_ids.size() * 4, b.expert_ids));
  WL_RETURN_IF_ERROR(Route({.expert_ids = b.expert_ids.as<int32_t>(),
                            .weights = b.weights.as<float>(),
                            .tokens = routing.tokens,
                            .slots = kBenchSlots,
                            .experts = kBenchExperts,
                            .start = b.start.as<int32_t>(),
                            .count = b.count.as<int32_t>(),
                            .row_token = b.row_token.as<int32_t>(),
                            .slot_row = b.slot_row.as<int32_t>(),
                            .row_weight = b.row_weight.as<float>(),
                            .bad_ids = b.bad_ids.as<int32_t>(),
                            .scratch = b.scratch.as<int32_t>()},
                           stream));
  return CudaStatus(cudaStreamSynchronize(stream), "routing");
}

}  // namespace warpline::cuda
