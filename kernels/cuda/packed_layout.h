// How weights, activations and rows lie in device memory for the expert tiles. Facts that packers,
// kernels and their emulation on the host share; plain C++, for host and device.
//
// Weights. The rows of a matrix are cut into row blocks of 16 and their k axis into slices of
// kGroups * 32 values; k is padded with zeros to a multiple of 128. One slice of one row block is a
// *piece*: what one warp turns into A fragments of mma.m16n8k16 (or of one warp of wgmma m64k16)
// without exchange between lanes. Lane 4 * g + t owns rows g and g + 8 and, in each group of 32
// consecutive k, the eight values 8 * t to 8 * t + 7: the first four in MMA step 0, the last four
// in step 1. So MMA step s, MMA column 8 * hi + 2 * t + c holds k = 8 * t + 4 * s + 2 * hi + c. Two
// consecutive slices of a super-block format share kSuperBytes (its half scales), which follow
// them:  slice 0 | slice 1 | super | slice 2 | slice 3 | super ...   (kSuperBytes is 0 elsewhere).
//
// Activations ("tiles"). Groups of 8 rows x 64 k, 1,024 bytes each: row r is 128 bytes, its 16-byte
// piece q lies at q ^ (r & 7). Order: [k / 64][row / 8]. Inside each group of 32 k the halves lie
// in the order of the MMA columns above: position 16 * s + 8 * hi + 2 * t + c holds k as above. One
// step of n rows (n a multiple of 8) is one run of 128 * n bytes; ldmatrix.x4 on the four pieces of
// a group of 32 gives the B fragments of its two MMA steps.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/quant_decode_common.h"

namespace warpline::cuda {

constexpr int kRowBlock = 16;     // weight rows of a piece
constexpr int kGroupK = 32;       // k values that four lanes share
constexpr int kPadK = 128;        // k is padded to a multiple of this
constexpr int kTileK = 64;        // k values of one activation tile
constexpr int kTileRows = 8;      // rows of one activation tile
constexpr int kTileBytes = 1024;  // of one activation tile
// Row groups (of 8) that may be read, but never used, behind the last one of an activation tensor.
constexpr int kSlackRowGroups = 32;

WL_HOST_DEVICE constexpr int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// The k inside its group of 32 that lies at `position` of an activation tile's group.
WL_HOST_DEVICE constexpr int KOfPosition(int position) {
  const int step = position >> 4;
  const int hi = (position >> 3) & 1;
  const int t = (position & 7) >> 1;
  return 8 * t + 4 * step + 2 * hi + (position & 1);
}

// The inverse.
WL_HOST_DEVICE constexpr int PositionOfK(int k) {
  const int t = k >> 3;
  const int step = (k >> 2) & 1;
  const int hi = (k >> 1) & 1;
  return 16 * step + 8 * hi + 2 * t + (k & 1);
}

// Byte offset of value `k` (0 to padded k) of `row` in an activation tensor of `row_groups`.
WL_HOST_DEVICE constexpr int64_t TileOffset(int64_t row, int64_t k, int64_t row_groups) {
  const int64_t group = k / kGroupK;  // two groups to a tile
  const int position = PositionOfK(static_cast<int>(k % kGroupK));
  const int64_t piece = (group % 2) * 4 + position / 8;
  return ((group / 2) * row_groups + row / kTileRows) * kTileBytes + (row % kTileRows) * 128 +
         ((piece ^ (row % kTileRows)) * 16) + (position % 8) * 2;
}

// Sizes of one format's packed weights. Filled from WeightFormat<kType>.
struct PackedShape {
  int slice_bytes = 0;  // bytes of a piece, a multiple of 16
  int super_bytes = 0;  // bytes behind every second piece, a multiple of 16
  int groups = 4;       // groups of 32 k in a piece: 4 or 2
};

// Bytes of one row block (16 rows) of `k` values, and where its piece `slice` starts.
WL_HOST_DEVICE constexpr int64_t RowBlockBytes(const PackedShape& shape, int64_t k) {
  const int64_t slices = RoundUp(k, kPadK) / (shape.groups * kGroupK);
  return slices * shape.slice_bytes + slices / 2 * shape.super_bytes;
}
WL_HOST_DEVICE constexpr int64_t SliceOffset(const PackedShape& shape, int64_t slice) {
  return slice * shape.slice_bytes + slice / 2 * shape.super_bytes;
}

}  // namespace warpline::cuda
