#include "kernels/cuda/product_check.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/gather_tiles.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/repack.h"

namespace warpline::cuda {
namespace {

constexpr float kOutputScale = 0.25f;  // of fused products; any power of two must work

template <typename T>
absl::StatusOr<DeviceBuffer> Upload(const std::vector<T>& values) {
  const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(T));
  WL_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Create(bytes));
  WL_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(buffer.as(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
      "copying operands to the device"));
  return buffer;
}

// All bytes kGuardByte: NaN as a half and as a float.
absl::Status Poison(const DeviceBuffer& buffer, cudaStream_t stream) {
  return CudaStatus(
      cudaMemsetAsync(buffer.as(), kGuardByte, static_cast<size_t>(buffer.bytes()), stream),
      "filling a buffer");
}

bool IsGateUp(Op op) { return op == Op::kGateUp || op == Op::kFewGateUp; }
bool IsFew(Op op) { return op == Op::kFewGateUp || op == Op::kFewPlain; }

OutputKind KindOf(const ProductCheck::Call& call) {
  if (call.op == Op::kGateUp) return OutputKind::kHalfTiles;
  return call.y_is_float && !IsGateUp(call.op) ? OutputKind::kFloatRows : OutputKind::kHalfRows;
}

// Rows of halves, padded with zeros.
std::vector<uint16_t> PadRows(const std::vector<uint16_t>& rows, int k, int padded_k) {
  const size_t count = rows.size() / static_cast<size_t>(k);
  std::vector<uint16_t> padded(count * static_cast<size_t>(padded_k), 0);
  for (size_t row = 0; row < count; ++row) {
    std::copy_n(rows.begin() + static_cast<int64_t>(row) * k, k,
                padded.begin() + static_cast<int64_t>(row) * padded_k);
  }
  return padded;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProductCheck>> ProductCheck::Create(const ExpertKernels& kernels,
                                                                   QuantType type,
                                                                   const ParityShape& shape,
                                                                   uint64_t seed) {
  std::unique_ptr<ProductCheck> check(new ProductCheck(kernels, type, shape));
  WL_ASSIGN_OR_RETURN(check->stream_, Stream::Create());
  WL_ASSIGN_OR_RETURN(check->counts_, DeviceBuffer::Create(sizeof(CompareCounts)));
  WL_RETURN_IF_ERROR(check->CreateWeights(seed));
  return check;
}

absl::Status ProductCheck::CreateWeights(uint64_t seed) {
  host_weights_ = RandomWeights(type_, shape_, seed);
  WL_ASSIGN_OR_RETURN(values_, Upload(host_weights_.values));
  const RawExperts raw = {.type = type_,
                          .experts = kParityExperts,
                          .rows = shape_.rows,
                          .k = shape_.k,
                          .blocks = host_weights_.blocks.data(),
                          .expert_bytes = RowBytes(type_, int64_t{shape_.rows} * shape_.k)};
  WL_ASSIGN_OR_RETURN(plain_, PackExperts(raw, stream_.get()));
  weight_factor_ = 1 / plain_.weight_scale;
  if (!shape_.is_gate_up) return absl::OkStatus();
  RawExperts gate = raw;
  gate.rows = n_ff();
  RawExperts up = gate;
  up.blocks += RowBytes(type_, int64_t{n_ff()} * shape_.k);
  WL_ASSIGN_OR_RETURN(gate_up_, PackGateUp(gate, up, stream_.get()));
  return absl::OkStatus();
}

absl::Status ProductCheck::SetRows(const RowLayout& layout, uint64_t seed) {
  layout_ = layout;
  const std::vector<uint16_t> x = RandomTokens(layout, shape_.k, seed);
  std::vector<int32_t> start = layout.start;
  start.push_back(layout.rows);
  WL_ASSIGN_OR_RETURN(start_, Upload(start));
  WL_ASSIGN_OR_RETURN(count_, Upload(layout.count));
  WL_ASSIGN_OR_RETURN(ids_, Upload(layout.ids));
  WL_ASSIGN_OR_RETURN(expert_of_row_, Upload(layout.expert_of_row));
  WL_ASSIGN_OR_RETURN(row_weight_, Upload(layout.row_weight));
  WL_ASSIGN_OR_RETURN(slot_row_, Upload(layout.slot_row));
  WL_ASSIGN_OR_RETURN(x_, Upload(x));
  WL_ASSIGN_OR_RETURN(x_padded_, Upload(PadRows(x, shape_.k, plain_.k)));
  const int64_t row_groups = layout.rows / kTileRows;
  WL_ASSIGN_OR_RETURN(
      x_tiles_,
      DeviceBuffer::Create((plain_.k / kTileK * row_groups + kSlackRowGroups) * kTileBytes));
  WL_ASSIGN_OR_RETURN(row_scale_, DeviceBuffer::Create(int64_t{4} * layout.rows));
  WL_RETURN_IF_ERROR(Poison(x_tiles_, stream_.get()));
  WL_RETURN_IF_ERROR(Poison(row_scale_, stream_.get()));
  WL_RETURN_IF_ERROR(GatherTiles({.x = x_.as(),
                                  .x_is_float = false,
                                  .tokens = layout.tokens,
                                  .k = shape_.k,
                                  .slot_row = slot_row_.as<int32_t>(),
                                  .slots = 1,
                                  .tiles = x_tiles_.as(),
                                  .row_groups = static_cast<int32_t>(row_groups),
                                  .row_scale = row_scale_.as<float>()},
                                 stream_.get()));
  WL_RETURN_IF_ERROR(MakeReferences());
  return stream_.Synchronize();
}

absl::Status ProductCheck::MakeReferences() {
  WL_ASSIGN_OR_RETURN(sums_, DeviceBuffer::Create(int64_t{8} * layout_.rows * shape_.rows));
  WL_RETURN_IF_ERROR(ReferenceProduct({.weights = values_.as<float>(),
                                       .weight_factor = weight_factor_,
                                       .x = x_.as<uint16_t>(),
                                       .ids = ids_.as<int32_t>(),
                                       .expert_of_row = expert_of_row_.as<int32_t>(),
                                       .rows = layout_.rows,
                                       .columns = shape_.rows,
                                       .k = shape_.k,
                                       .sums = sums_.as<double>()},
                                      stream_.get()));
  if (!shape_.is_gate_up) return absl::OkStatus();
  WL_ASSIGN_OR_RETURN(h_, DeviceBuffer::Create(int64_t{8} * layout_.rows * n_ff()));
  return ReferenceSwiglu(sums_.as<double>(), layout_.rows, n_ff(), h_.as<double>(), stream_.get());
}

absl::Status ProductCheck::PrepareOutput(const Call& call) {
  const PackedExperts& weights = WeightsOf(call.op);
  const int64_t bytes = int64_t{layout_.rows} * weights.out_columns *
                        (KindOf(call) == OutputKind::kFloatRows ? 4 : 2);
  if (output_.bytes() < bytes) {
    WL_ASSIGN_OR_RETURN(output_, DeviceBuffer::Create(bytes));
  }
  return Poison(output_, stream_.get());
}

GroupedArgs ProductCheck::ArgsOf(const Call& call) const {
  GroupedArgs args;
  if (IsFew(call.op)) {
    args.x_rows = x_padded_.as<uint16_t>();
    args.ids = ids_.as<int32_t>();
  } else {
    args.x_tiles = x_tiles_.as();
    args.x_row_groups = layout_.rows / kTileRows;
    args.row_scale = row_scale_.as<float>();
  }
  if (IsGateUp(call.op)) {
    args.output_scale = kOutputScale;
    args.h_row_groups = layout_.rows / kTileRows;
    if (IsFew(call.op)) {
      args.h_rows = output_.as<uint16_t>();
    } else {
      args.h_tiles = output_.as();
    }
    return args;
  }
  args.y = output_.as();
  args.y_is_float = call.y_is_float;
  args.row_weight = call.has_row_weight ? row_weight_.as<float>() : nullptr;
  return args;
}

absl::Status ProductCheck::Enqueue(const KernelSet& set, const Call& call, const ItemLists& items,
                                   const DeviceBuffer& count) {
  const ExpertRows rows = {start_.as<int32_t>(), count.as<int32_t>(), kParityExperts};
  WL_RETURN_IF_ERROR(items.Fill(rows, stream_.get()));
  return kernels_.Multiply(set, WeightsOf(call.op), items, ArgsOf(call), stream_.get());
}

absl::StatusOr<Comparison> ProductCheck::Run(const KernelSet& set, const Call& call, bool replay) {
  const PackedExperts& weights = WeightsOf(call.op);
  WL_ASSIGN_OR_RETURN(const ItemLists items, ItemLists::Create(set, weights, layout_.rows));
  WL_RETURN_IF_ERROR(PrepareOutput(call));
  if (replay) {
    WL_ASSIGN_OR_RETURN(const Graph graph, Graph::Capture(stream_.get(), [&] {
                          return Enqueue(set, call, items, count_);
                        }));
    WL_RETURN_IF_ERROR(graph.Launch(stream_.get()));
    WL_RETURN_IF_ERROR(stream_.Synchronize());
  } else {
    WL_RETURN_IF_ERROR(Enqueue(set, call, items, count_));
  }
  const bool is_fused = IsGateUp(call.op);
  return Compare({.reference = is_fused ? h_.as<double>() : sums_.as<double>(),
                  .factor = is_fused ? kOutputScale : 1,
                  .row_weight = ArgsOf(call).row_weight,
                  .expert_of_row = expert_of_row_.as<int32_t>(),
                  .output = output_.as(),
                  .kind = KindOf(call),
                  .row_groups = layout_.rows / kTileRows,
                  .rows = layout_.rows,
                  .columns = weights.rows,
                  .output_columns = weights.out_columns},
                 counts_, stream_.get());
}

absl::StatusOr<std::vector<uint8_t>> ProductCheck::DownloadOutput() const {
  std::vector<uint8_t> bytes(static_cast<size_t>(output_.bytes()));
  WL_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(bytes.data(), output_.as(), bytes.size(),
                                                cudaMemcpyDeviceToHost, stream_.get()),
                                "reading outputs"));
  WL_RETURN_IF_ERROR(stream_.Synchronize());
  return bytes;
}

std::vector<uint8_t> ProductCheck::RowBits(const Call& call, const std::vector<uint8_t>& output,
                                           int row) const {
  const int columns = WeightsOf(call.op).out_columns;
  const OutputKind kind = KindOf(call);
  std::vector<uint8_t> bits;
  if (kind != OutputKind::kHalfTiles) {
    const int64_t bytes = int64_t{columns} * (kind == OutputKind::kFloatRows ? 4 : 2);
    bits.assign(output.begin() + row * bytes, output.begin() + (row + 1) * bytes);
    return bits;
  }
  for (int column = 0; column < columns; ++column) {
    const int64_t offset = TileOffset(row, column, layout_.rows / kTileRows);
    bits.insert(bits.end(), output.begin() + offset, output.begin() + offset + 2);
  }
  return bits;
}

absl::StatusOr<bool> ProductCheck::IsBatchInvariant(const KernelSet& set, const Call& call) {
  constexpr int kKept = 3;  // rows of every second expert
  WL_ASSIGN_OR_RETURN(const ItemLists items,
                      ItemLists::Create(set, WeightsOf(call.op), layout_.rows));
  WL_RETURN_IF_ERROR(PrepareOutput(call));
  WL_RETURN_IF_ERROR(Enqueue(set, call, items, count_));
  WL_ASSIGN_OR_RETURN(const std::vector<uint8_t> all, DownloadOutput());
  std::vector<int32_t> counts = layout_.count;
  for (size_t e = 0; e < counts.size(); ++e)
    counts[e] = e % 2 == 1 ? std::min(counts[e], kKept) : 0;
  WL_ASSIGN_OR_RETURN(const DeviceBuffer fewer, Upload(counts));
  WL_RETURN_IF_ERROR(Poison(output_, stream_.get()));
  WL_RETURN_IF_ERROR(Enqueue(set, call, items, fewer));
  WL_ASSIGN_OR_RETURN(const std::vector<uint8_t> some, DownloadOutput());
  for (size_t e = 0; e < counts.size(); ++e) {
    for (int row = layout_.start[e]; row < layout_.start[e] + counts[e]; ++row) {
      if (RowBits(call, all, row) != RowBits(call, some, row)) return false;
    }
  }
  return true;
}

absl::StatusOr<bool> ProductCheck::PackedAsOnTheHost() const {
  for (const PackedExperts* const packed : {&plain_, &gate_up_}) {
    if (packed->data.bytes() == 0) continue;
    const int64_t raw_bytes = RowBytes(type_, int64_t{shape_.rows} * shape_.k);
    std::vector<uint8_t> on_host(static_cast<size_t>(packed->expert_bytes));
    std::vector<uint8_t> on_device(on_host.size());
    const int e = kParityExperts - 1;  // The last expert stands for all.
    const uint8_t* const raw = host_weights_.blocks.data() + e * raw_bytes;
    RepackArgs args = {.raw_expert_bytes = raw_bytes,
                       .experts = 1,
                       .rows = packed->rows,
                       .k = shape_.k,
                       .shift = std::ilogb(weight_factor_),
                       .row_blocks = packed->row_blocks,
                       .packed = on_host.data()};
    args.raw[0] = raw;
    if (packed->is_gate_up) args.raw[1] = raw + raw_bytes / 2;
    RepackOnHost(type_, args);
    WL_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(on_device.data(), packed->data.as() + e * packed->expert_bytes,
                              on_device.size(), cudaMemcpyDeviceToHost),
                   "reading packed weights"));
    if (on_host != on_device) return false;
  }
  return true;
}

}  // namespace warpline::cuda
