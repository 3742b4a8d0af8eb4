// Turns the raw GGUF blocks of expert matrices into packed weights (packed_layout.h), on the device
// or, with the same function for every byte, on the host.
#pragma once

#include <stdint.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/weight_format.h"

struct CUstream_st;  // what cudaStream_t points to; this header needs no CUDA

namespace warpline::cuda {

// One set of expert matrices of one type. Pointers are of the memory of whoever repacks: device
// addresses for LaunchRepack, host addresses for RepackOnHost.
struct RepackArgs {
  // Raw blocks, expert e of raw[i] at e * raw_expert_bytes[i]. raw[1] is null for a plain matrix;
  // otherwise raw[0] is gate, raw[1] is up, and a row block is 8 rows of gate above the same 8 rows
  // of up.
  const uint8_t* raw[2] = {nullptr, nullptr};
  int64_t raw_expert_bytes = 0;
  int32_t experts = 0;
  int32_t rows = 0;           // rows of each raw matrix
  int64_t k = 0;              // values of a row, a multiple of the type's block
  int shift = 0;              // WeightShift of the tensors for HasWeightShift types, else 0
  int32_t row_blocks = 0;     // to write; what lies beyond `rows` becomes zero weights
  uint8_t* packed = nullptr;  // 16-byte aligned; RowBlockBytes(shape, k) for each row block
};

// The rows of raw blocks that a lane of a row block packs.
WL_HOST_DEVICE inline RawRows LaneRows(const RepackArgs& args, int64_t row_bytes, int64_t expert,
                                       int64_t row_block, int lane) {
  RawRows rows;
  rows.k = args.k;
  rows.shift = args.shift;
  const bool is_interleaved = args.raw[1] != nullptr;
  WL_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int64_t row =
        is_interleaved ? 8 * row_block + lane / 4 : kRowBlock * row_block + 8 * h + lane / 4;
    if (row >= args.rows) continue;
    const uint8_t* const matrix = args.raw[is_interleaved ? h : 0];
    rows.rows[h] = matrix + expert * args.raw_expert_bytes + row * row_bytes;
  }
  return rows;
}

// Pieces of all experts.
WL_HOST_DEVICE constexpr int64_t PieceCount(const PackedShape& shape, const RepackArgs& args) {
  return RoundUp(args.k, kPadK) / (shape.groups * kGroupK) * args.row_blocks * args.experts;
}

// Packs what belongs to `lane` of piece `piece`, counted over experts, row blocks and slices.
template <QuantType kType>
WL_HOST_DEVICE void RepackLane(const RepackArgs& args, int64_t piece, int lane) {
  using Format = WeightFormat<kType>;
  constexpr PackedShape kShape = Format::kShape;  // device code has no address of the member
  using Block = typename BlockOf<kType>::Type;
  const int64_t slices = RoundUp(args.k, kPadK) / (kShape.groups * kGroupK);
  const int64_t slice = piece % slices;
  const int64_t row_block = piece / slices % args.row_blocks;
  const int64_t expert = piece / slices / args.row_blocks;
  const int64_t row_bytes = args.k / Block::kValues * Block::kBytes;
  uint8_t* const block = args.packed + piece / slices * RowBlockBytes(kShape, args.k);
  uint8_t* const super =
      block + SliceOffset(kShape, slice / 2 * 2) + 2 * static_cast<int64_t>(kShape.slice_bytes);
  Format::PackLane(LaneRows(args, row_bytes, expert, row_block, lane), static_cast<int>(slice),
                   lane, block + SliceOffset(kShape, slice), super);
}

// Facts of WeightFormat<type> for a weight type known at run time.
PackedShape PackedShapeOf(QuantType type);
int TableBytesOf(QuantType type);
// Writes the decoder's table, TableBytesOf(type) bytes.
void MakeTableOf(QuantType type, uint8_t* table);

// Packs all of `args` on the current device, asynchronously on `stream`: the same bytes as on the
// host. InvalidArgument where `type` is no weight type. Only in builds with CUDA.
absl::Status LaunchRepack(QuantType type, const RepackArgs& args, CUstream_st* stream);

// Packs all of `args`, a weight type's, on the calling thread.
void RepackOnHost(QuantType type, const RepackArgs& args);

// The largest finite |value| of `value_count` values, for WeightShift; 0 without values.
float MaxAbsOnHost(QuantType type, const uint8_t* blocks, int64_t value_count);

// Raw blocks of experts in device memory.
struct MaxAbsArgs {
  QuantType type = QuantType::kF32;
  const uint8_t* blocks = nullptr;  // expert e from e * expert_bytes on
  int32_t experts = 0;
  int64_t expert_bytes = 0;
  int64_t expert_values = 0;
  QuantGrids grids;  // of the device
};

// The same of all experts on the current device, for HasWeightShift types; 0 for others. Waits for
// the stream. Only in builds with CUDA.
absl::StatusOr<float> MaxAbsOnDevice(const MaxAbsArgs& args, CUstream_st* stream);

}  // namespace warpline::cuda
