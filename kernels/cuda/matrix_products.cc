#include "kernels/cuda/matrix_products.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/few_rows.h"
#include "kernels/cuda/float_product.h"
#include "kernels/cuda/packed_layout.h"

namespace warpline::cuda {
namespace {

// Whether the sums are the output as they are, or are added to it.
bool IsPlain(const ProductArgs& args) {
  return args.bias == nullptr && args.row_gate == nullptr && args.soft_cap <= 0;
}

// Whether no value belongs to both, which may be columns of one matrix.
bool AreDisjoint(const FloatRows& a, const FloatRows& b) {
  if (!Overlap(a, b)) return true;
  const FloatRows& left = a.data < b.data ? a : b;
  const FloatRows& right = a.data < b.data ? b : a;
  const int64_t offset = right.data - left.data;
  return a.stride == b.stride && offset >= left.width && offset + right.width <= a.stride;
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

// Whether the kernels can put their sums where they belong, without a pass behind them.
bool MatrixProducts::WritesAlone(const ProductArgs& args, const KernelSet& set) const {
  if (!IsPlain(args)) return false;
  const bool places_floats =
      set.policy == Policy::kWgmma || (args.is_decode && set.policy == Policy::kMmaSync);
  if (places_floats) return true;
  return !args.accumulate && (args.out.stride == args.out.width || args.out.row_count == 1) &&
         reinterpret_cast<uintptr_t>(args.out.data) % 16 == 0;
}

absl::Status MatrixProducts::Run(const ProductArgs& args, cudaStream_t stream) {
  if (args.in.row_count == 0) return absl::OkStatus();
  if (args.weight->type() == QuantType::kF32) return RunExact(args, stream);
  const Op op = args.is_decode ? Op::kFewPlain : Op::kPlain;
  WL_ASSIGN_OR_RETURN(const KernelSet* const set, kernels_->choices().For(op, args.weight->type()));
  if (WritesAlone(args, *set)) return Multiply(args, *set, args.out, args.accumulate, stream);
  FloatRows sums{nullptr, args.in.row_count, args.out.width, args.out.width};
  WL_ASSIGN_OR_RETURN(sums.data, y_.Get<float>(RoomFor(args.out)));
  WL_RETURN_IF_ERROR(Multiply(args, *set, sums, false, stream));
  behind_.clear();
  return Finish(args, sums, 1, stream);
}

absl::Status MatrixProducts::RunExact(const ProductArgs& args, cudaStream_t stream) {
  if (args.in.row_count == 0) return absl::OkStatus();
  behind_.clear();
  if (Overlap(args.in, args.out)) ForgetInput();
  WL_ASSIGN_OR_RETURN(const float* const weights, args.weight->Floats(grids_, stream));
  FloatRows sums = args.out;
  const bool is_direct = IsPlain(args) && !args.accumulate && args.weight->scale() == 1;
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
                                   .is_prompt = !args.is_decode,
                                   .y = sums.data,
                                   .y_stride = sums.stride,
                                   .is_early = kernels_->device().starts_early()},
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
    // A kernel that starts early reads its tiles before it waits for the kernel before it, which
    // must not be the one that cuts them.
    ForgetInput();
  }
  return &filled.lists;
}

bool MatrixProducts::IsConverted(const FloatRows& rows, bool is_decode) const {
  const FloatRows& last = converted_.rows;
  return last.data == rows.data && last.row_count == rows.row_count && last.width == rows.width &&
         last.stride == rows.stride && converted_.is_decode == is_decode;
}

absl::StatusOr<MatrixProducts::HalfRows> MatrixProducts::Room(int64_t rows, int64_t k) {
  const int64_t most = std::max(max_rows_, rows);
  const int64_t row_groups = RoundUp(most, kTileRows) / kTileRows + kSlackRowGroups;
  const int64_t x_bytes = row_groups * kTileRows * RoundUp(k, kPadK) * int64_t{2};
  const int64_t scale_count = row_groups * kTileRows;
  const int64_t scale_bytes = scale_count * static_cast<int64_t>(sizeof(float));
  if (x_.bytes() < x_bytes || row_scale_.bytes() < scale_bytes) ForgetInput();
  HalfRows room;
  WL_ASSIGN_OR_RETURN(room.halves, x_.Get<uint16_t>(x_bytes / 2));
  WL_ASSIGN_OR_RETURN(room.row_scale, row_scale_.Get<float>(scale_count));
  return room;
}

absl::StatusOr<MatrixProducts::HalfRows> MatrixProducts::MakeHalves(const FloatRows& rows,
                                                                    bool is_scaled) {
  WL_ASSIGN_OR_RETURN(HalfRows room, Room(rows.row_count, rows.width));
  converted_ = {.rows = rows, .is_decode = true, .is_scaled = is_scaled};
  behind_.clear();
  if (!is_scaled) room.row_scale = nullptr;
  return room;
}

absl::StatusOr<MatrixProducts::HalfRows> MatrixProducts::HalvesOf(const FloatRows& rows,
                                                                  cudaStream_t stream) {
  WL_ASSIGN_OR_RETURN(HalfRows room, Room(rows.row_count, rows.width));
  if (!IsConverted(rows, true)) {
    WL_RETURN_IF_ERROR(ConvertRows({.x = rows.data,
                                    .x_stride = rows.stride,
                                    .rows = static_cast<int32_t>(rows.row_count),
                                    .k = static_cast<int32_t>(rows.width),
                                    .halves = room.halves,
                                    .row_scale = room.row_scale,
                                    .is_early = kernels_->device().starts_early()},
                                   stream));
    converted_ = {.rows = rows, .is_decode = true};
  }
  behind_.clear();
  if (!converted_.is_scaled) room.row_scale = nullptr;
  return room;
}

absl::Status MatrixProducts::Convert(const ProductArgs& args, const ConvertArgs& convert,
                                     cudaStream_t stream) {
  if (IsConverted(args.in, args.is_decode)) return absl::OkStatus();
  behind_.clear();
  converted_ = {.rows = args.in, .is_decode = args.is_decode};
  return ConvertRows(convert, stream);
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

void MatrixProducts::NoteReplay(int64_t rows) {
  if (rows < 0) return;
  described_rows_ = rows;
  // It may have cut these again or not.
  for (auto& [key, filled] : lists_) {
    if (filled.rows != rows) filled.rows = -1;
  }
}

bool MatrixProducts::MayRunBeside(const FloatRows& y) const {
  return !behind_.empty() &&
         std::all_of(behind_.begin(), behind_.end(),
                     [&y](const FloatRows& last) { return AreDisjoint(last, y); });
}

absl::Status MatrixProducts::Multiply(const ProductArgs& args, const KernelSet& set,
                                      const FloatRows& y, bool accumulate, cudaStream_t stream) {
  // A kernel that starts early reads its weights before it waits for the kernel before it, which
  // must not be the one that packs them.
  if (!args.weight->is_packed()) ForgetInput();
  WL_ASSIGN_OR_RETURN(const PackedExperts* const weight, args.weight->Packed(grids_, stream));
  const Op op = args.is_decode ? Op::kFewPlain : Op::kPlain;
  const int64_t rows = args.in.row_count;
  WL_ASSIGN_OR_RETURN(const ItemLists* const items, Items(set, op, *weight, rows, stream));
  WL_ASSIGN_OR_RETURN(const HalfRows room, Room(rows, weight->k));
  ConvertArgs convert = {.x = args.in.data,
                         .x_stride = args.in.stride,
                         .rows = static_cast<int32_t>(rows),
                         .k = static_cast<int32_t>(args.in.width),
                         .row_scale = room.row_scale,
                         .is_early = kernels_->device().starts_early()};
  GroupedArgs product;
  if (args.is_decode) {
    product.known_items = static_cast<int32_t>(RoundUp(rows, kFewRowsN) / kFewRowsN);
    convert.halves = room.halves;
    product.x_rows = room.halves;
  } else {
    convert.tiles = reinterpret_cast<uint8_t*>(room.halves);
    convert.row_groups =
        static_cast<int32_t>(RoundUp(std::max(max_rows_, rows), kTileRows) / kTileRows) +
        kSlackRowGroups;
    product.x_tiles = convert.tiles;
    product.x_row_groups = convert.row_groups;
  }
  const bool is_scaled = !IsConverted(args.in, args.is_decode) || converted_.is_scaled;
  WL_RETURN_IF_ERROR(Convert(args, convert, stream));
  product.row_scale = is_scaled ? room.row_scale : nullptr;
  product.weight_scale = args.weight->scale();
  product.y = y.data;
  product.y_is_float = true;
  product.y_pitch = y.stride;
  product.accumulate = accumulate;
  product.is_beside = MayRunBeside(y);
  if (!product.is_beside) behind_.clear();
  const bool may_be_followed =
      args.is_decode && set.policy == Policy::kMmaSync && kernels_->device().starts_early();
  if (may_be_followed) {
    behind_.push_back(y);
  } else {
    behind_.clear();
  }
  if (Overlap(args.in, args.out)) ForgetInput();
  return kernels_->Multiply(set, *weight, *items, product, stream);
}

}  // namespace warpline::cuda
