// How products of floats are cut into tiles, and who adds what in a tile. Plain C++, for host and
// device: the kernel of float_tiles.cu uses it, tests on the host prove it.
#pragma once

#include <stdint.h>

#include "kernels/quant_decode_common.h"

namespace warpline::cuda {

// The sum of a row and a column is made of kFloatGroups parts. Group g of a block's threads adds up
// the products with k = 8 g to 8 g + 7 of each 32, ascending, fused; then come the parts: (0 + 2) +
// (1 + 3). Zeros fill k up to whole kFloatPadK. So a tile's size does not change a bit.
constexpr int kFloatGroups = 4;
constexpr int kFloatGroupThreads = 64;
constexpr int kFloatThreads = kFloatGroups * kFloatGroupThreads;
constexpr int kFloatPadK = 128;

// Operands come in pieces of four values of k.
constexpr int kFloatPieceK = 4;
constexpr int kFloatStageValues = 4096;  // of both operands, at most

// A thread of a group has rows r + 8 i and columns c + 8 j of its tile, r and c below 8.
struct FloatTile {
  int thread_rows = 0;
  int thread_columns = 0;

  constexpr int rows() const { return 8 * thread_rows; }
  constexpr int columns() const { return 8 * thread_columns; }
  // The values of k that are in shared memory together: a power of two.
  constexpr int stage_k() const {
    int k = kFloatPadK;
    while (k * (rows() + columns()) > kFloatStageValues) k /= 2;
    return k;
  }
};

constexpr FloatTile kFloatTiles[] = {{8, 8}, {4, 8}, {4, 4}, {2, 2}};
constexpr int kFloatTileCount = sizeof(kFloatTiles) / sizeof(kFloatTiles[0]);

constexpr int64_t FloatTileBlocks(const FloatTile& tile, int64_t rows, int64_t columns) {
  return ((rows + tile.rows() - 1) / tile.rows()) *
         ((columns + tile.columns() - 1) / tile.columns());
}

// The index of the largest tile that keeps most of a card busy and is not half empty, or else of
// the smallest: the larger, the more is done with each value that is read.
constexpr int ChooseFloatTile(int64_t rows, int64_t columns) {
  constexpr int kBusyBlocks = 96;
  for (int i = 0; i + 1 < kFloatTileCount; ++i) {
    const FloatTile& tile = kFloatTiles[i];
    if (tile.rows() < 2 * rows && tile.columns() < 2 * columns &&
        FloatTileBlocks(tile, rows, columns) >= kBusyBlocks) {
      return i;
    }
  }
  return kFloatTileCount - 1;
}

// The first row and column of a thread of a group. Lanes that differ in their lowest bit share the
// row, those that differ in the next one the column: the hardware reads such 16-byte values at
// once.
WL_HOST_DEVICE constexpr int FloatTileRow(int thread) { return thread / 2 % 8; }
WL_HOST_DEVICE constexpr int FloatTileColumn(int thread) {
  return thread % 2 + thread / 16 % 2 * 2 + thread / 32 % 2 * 4;
}

// The piece of a stage that a group takes in a step.
WL_HOST_DEVICE constexpr int FloatTilePiece(int group, int step) {
  return step / 2 * 8 + group * 2 + step % 2;
}

// Where piece `piece` of row `row` of a stage lies, in pieces: eight rows at the same piece are in
// eight different groups of banks.
WL_HOST_DEVICE constexpr int FloatTilePlace(int row, int piece, int row_pieces) {
  return row * row_pieces + (piece ^ (row % 8));
}

}  // namespace warpline::cuda
