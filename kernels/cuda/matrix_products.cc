#include "kernels/cuda/matrix_products.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/float_product.h"
#include "kernels/cuda/packed_layout.h"

namespace warpline::cuda {
namespace {

// Whether the product may write its sums where they belong, without a pass of its own.
bool IsPlain(const ProductArgs& args) {
  return args.bias == nullptr && args.row_gate == nullptr && args.soft_cap <= 0 && !args.accumulate;
}

absl::Status Finish(const ProductArgs& args, const FloatRows& sums, float scale,
                    cudaStream_t stream) {
  return FinishRows({.in = sums,
                     .out = args.out,
                     .scale = scale,
                     .bias = args.bias,
                     .row_gate = args.row_gate,
                     .soft_cap = args.soft_cap,
                     .accumulate = args.accumulate},
                    stream);
}

}  // namespace

absl::StatusOr<MatrixProducts> MatrixProducts::Create(const ExpertKernels& kernels,
                                                      const QuantGrids& grids) {
  MatrixProducts products(kernels, grids);
  WL_ASSIGN_OR_RETURN(products.start_, DeviceBuffer::Create(2 * sizeof(int32_t)));
  WL_ASSIGN_OR_RETURN(products.count_, DeviceBuffer::Create(sizeof(int32_t)));
  return products;
}

absl::Status MatrixProducts::Run(const ProductArgs& args, cudaStream_t stream) {
  if (args.in.row_count == 0) return absl::OkStatus();
  if (args.weight->type() == QuantType::kF32) return RunExact(args, stream);
  const bool is_packed = args.out.stride == args.out.width || args.out.row_count == 1;
  const bool is_direct =
      IsPlain(args) && is_packed && reinterpret_cast<uintptr_t>(args.out.data) % 16 == 0;
  if (is_direct) return Multiply(args, args.out.data, stream);
  WL_ASSIGN_OR_RETURN(float* const y, y_.Get<float>(RoomFor(args.out)));
  WL_RETURN_IF_ERROR(Multiply(args, y, stream));
  const FloatRows sums{y, args.in.row_count, args.out.width, args.out.width};
  return Finish(args, sums, 1, stream);
}

absl::Status MatrixProducts::RunExact(const ProductArgs& args, cudaStream_t stream) {
  if (args.in.row_count == 0) return absl::OkStatus();
  ForgetInput();  // It may be overwritten.
  WL_ASSIGN_OR_RETURN(const float* const weights, args.weight->Floats(grids_, stream));
  FloatRows sums = args.out;
  const bool is_direct = IsPlain(args) && args.weight->scale() == 1;
  if (!is_direct) {
    WL_ASSIGN_OR_RETURN(sums.data, y_.Get<float>(RoomFor(args.out)));
    sums.stride = sums.width;
  }
  WL_RETURN_IF_ERROR(FloatProduct({.weights = weights,
                                   .columns = static_cast<int32_t>(args.out.width),
                                   .k = static_cast<int32_t>(args.in.width),
                                   .x = args.in.data,
                                   .x_stride = args.in.stride,
                                   .rows = static_cast<int32_t>(args.in.row_count),
                                   .y = sums.data,
                                   .y_stride = sums.stride},
                                  stream));
  return is_direct ? absl::OkStatus() : Finish(args, sums, args.weight->scale(), stream);
}

absl::StatusOr<const ItemLists*> MatrixProducts::Items(const KernelSet& set, Op op,
                                                       const PackedExperts& weight, int64_t rows,
                                                       cudaStream_t stream) {
  FilledLists& filled = lists_[{op, weight.type, set.policy, weight.row_blocks}];
  if (rows > filled.capacity) {
    const int64_t capacity = std::max(rows, max_rows_);
    WL_ASSIGN_OR_RETURN(filled.lists, ItemLists::Create(set, weight, capacity));
    filled.capacity = capacity;
    filled.rows = -1;
  }
  if (rows != described_rows_) {
    WL_RETURN_IF_ERROR(SetRowSpace(static_cast<int32_t>(rows), start_.as<int32_t>(),
                                   count_.as<int32_t>(), stream));
    described_rows_ = rows;
  }
  if (rows != filled.rows) {
    WL_RETURN_IF_ERROR(filled.lists.Fill({start_.as<int32_t>(), count_.as<int32_t>(), 1}, stream));
    filled.rows = rows;
  }
  return &filled.lists;
}

absl::Status MatrixProducts::Convert(const ProductArgs& args, const ConvertArgs& convert,
                                     cudaStream_t stream) {
  const FloatRows& in = args.in;
  const FloatRows& out = args.out;
  const FloatRows& last = converted_.rows;
  const bool is_same = last.data == in.data && last.row_count == in.row_count &&
                       last.width == in.width && last.stride == in.stride &&
                       converted_.is_decode == args.is_decode;
  if (!is_same) WL_RETURN_IF_ERROR(ConvertRows(convert, stream));
  const float* const in_end = in.data + (in.row_count - 1) * in.stride + in.width;
  const float* const out_end = out.data + (out.row_count - 1) * out.stride + out.width;
  converted_ = {};
  if (out.data >= in_end || in.data >= out_end) {
    converted_ = {.rows = in, .is_decode = args.is_decode};
  }
  return absl::OkStatus();
}

int64_t MatrixProducts::RoomFor(const FloatRows& out) const {
  constexpr int64_t kGenerous = int64_t{64} << 20;  // values; a step's rows, but not its logits
  const int64_t most = std::max(max_rows_, out.row_count) * out.width;
  return most <= kGenerous ? most : out.row_count * out.width;
}

int64_t MatrixProducts::footprint() const {
  int64_t total = x_.bytes() + row_scale_.bytes() + y_.bytes();
  for (const auto& [key, filled] : lists_) total += filled.capacity;
  return total;
}

void MatrixProducts::ForgetRows() {
  described_rows_ = -1;
  for (auto& [key, filled] : lists_) filled.rows = -1;
}

absl::Status MatrixProducts::Multiply(const ProductArgs& args, float* y, cudaStream_t stream) {
  WL_ASSIGN_OR_RETURN(const PackedExperts* const weight, args.weight->Packed(grids_, stream));
  const Op op = args.is_decode ? Op::kFewPlain : Op::kPlain;
  WL_ASSIGN_OR_RETURN(const KernelSet* const set, kernels_->choices().For(op, weight->type));
  const int64_t rows = args.in.row_count;
  WL_ASSIGN_OR_RETURN(const ItemLists* const items, Items(*set, op, *weight, rows, stream));
  const int64_t most = std::max(max_rows_, rows);
  const int64_t row_groups = RoundUp(most, kTileRows) / kTileRows + kSlackRowGroups;
  const int64_t x_bytes = row_groups * kTileRows * weight->k * int64_t{2};
  const int64_t scale_bytes = row_groups * kTileRows * static_cast<int64_t>(sizeof(float));
  if (x_.bytes() < x_bytes || row_scale_.bytes() < scale_bytes) ForgetInput();
  WL_ASSIGN_OR_RETURN(uint8_t* const x, x_.Get<uint8_t>(x_bytes));
  WL_ASSIGN_OR_RETURN(float* const row_scale, row_scale_.Get<float>(row_groups * kTileRows));
  ConvertArgs convert = {.x = args.in.data,
                         .x_stride = args.in.stride,
                         .rows = static_cast<int32_t>(rows),
                         .k = static_cast<int32_t>(args.in.width),
                         .row_scale = row_scale};
  GroupedArgs product;
  if (args.is_decode) {
    convert.halves = reinterpret_cast<uint16_t*>(x);
    product.x_rows = convert.halves;
  } else {
    convert.tiles = x;
    convert.row_groups = static_cast<int32_t>(row_groups);
    product.x_tiles = x;
    product.x_row_groups = convert.row_groups;
  }
  WL_RETURN_IF_ERROR(Convert(args, convert, stream));
  product.row_scale = row_scale;
  product.weight_scale = args.weight->scale();
  product.y = y;
  product.y_is_float = true;
  return kernels_->Multiply(*set, *weight, *items, product, stream);
}

}  // namespace warpline::cuda
