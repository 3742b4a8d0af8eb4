#include "kernels/cuda/float_tile.h"

#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace warpline::cuda {
namespace {

FloatTile Chosen(int64_t rows, int64_t columns) {
  return kFloatTiles[ChooseFloatTile(rows, columns)];
}

TEST(FloatTileTest, LargeTilesServeManyRowsAndSmallOnesFew) {
  const auto size = [](const FloatTile& tile) { return std::pair(tile.rows(), tile.columns()); };
  EXPECT_EQ(size(Chosen(27000, 128)), std::pair(64, 64));
  EXPECT_EQ(size(Chosen(4096, 128)), std::pair(64, 64));
  EXPECT_EQ(size(Chosen(4096, 64)), std::pair(32, 64));
  EXPECT_EQ(size(Chosen(2048, 128)), std::pair(32, 64));
  EXPECT_EQ(size(Chosen(1024, 128)), std::pair(32, 32));
  EXPECT_EQ(size(Chosen(64, 128)), std::pair(16, 16));
  EXPECT_EQ(size(Chosen(64, 512)), std::pair(16, 16));
  EXPECT_EQ(size(Chosen(1, 128)), std::pair(16, 16));
  // Not what would be empty for the most part.
  EXPECT_EQ(size(Chosen(27000, 32)), std::pair(32, 32));
  EXPECT_EQ(size(Chosen(1, 150000)), std::pair(16, 16));
}

TEST(FloatTileTest, BlocksCoverAllRowsAndColumns) {
  EXPECT_EQ(FloatTileBlocks({8, 8}, 64, 64), 1);
  EXPECT_EQ(FloatTileBlocks({8, 8}, 65, 64), 2);
  EXPECT_EQ(FloatTileBlocks({4, 8}, 65, 65), 6);
}

TEST(FloatTileTest, ThreadsOfAGroupHaveEachRowAndColumnOnce) {
  for (const FloatTile& tile : kFloatTiles) {
    std::set<std::pair<int, int>> seen;
    for (int thread = 0; thread < kFloatGroupThreads; ++thread) {
      for (int i = 0; i < tile.thread_rows; ++i) {
        for (int j = 0; j < tile.thread_columns; ++j) {
          seen.insert({FloatTileRow(thread) + 8 * i, FloatTileColumn(thread) + 8 * j});
        }
      }
    }
    EXPECT_EQ(static_cast<int>(seen.size()), tile.rows() * tile.columns());
    EXPECT_EQ(*seen.begin(), std::pair(0, 0));
    EXPECT_EQ(*seen.rbegin(), std::pair(tile.rows() - 1, tile.columns() - 1));
  }
}

// The values of k that a group adds, in its order, over several stages of a tile.
std::vector<int> OrderOf(const FloatTile& tile, int group, int k) {
  std::vector<int> order;
  const int steps = tile.stage_k() / kFloatPieceK / kFloatGroups;
  for (int begin = 0; begin < k; begin += tile.stage_k()) {
    for (int step = 0; step < steps; ++step) {
      const int first = begin + FloatTilePiece(group, step) * kFloatPieceK;
      for (int i = 0; i < kFloatPieceK; ++i) order.push_back(first + i);
    }
  }
  return order;
}

TEST(FloatTileTest, EveryTileAddsInTheSameOrder) {
  constexpr int kWidth = 3 * kFloatPadK;
  for (int group = 0; group < kFloatGroups; ++group) {
    std::vector<int> expected;
    for (int k = 0; k < kWidth; ++k) {
      if (k / 8 % kFloatGroups == group) expected.push_back(k);
    }
    for (const FloatTile& tile : kFloatTiles) {
      EXPECT_EQ(kFloatPadK % tile.stage_k(), 0);
      EXPECT_LE(tile.stage_k() * (tile.rows() + tile.columns()), kFloatStageValues);
      EXPECT_EQ(OrderOf(tile, group, kWidth), expected) << tile.rows() << " rows";
    }
  }
}

TEST(FloatTileTest, PiecesHavePlacesOfTheirOwn) {
  for (const FloatTile& tile : kFloatTiles) {
    const int row_pieces = tile.stage_k() / kFloatPieceK;
    const int rows = tile.rows() + tile.columns();
    std::set<int> places;
    for (int row = 0; row < rows; ++row) {
      for (int piece = 0; piece < row_pieces; ++piece) {
        places.insert(FloatTilePlace(row, piece, row_pieces));
      }
    }
    EXPECT_EQ(static_cast<int>(places.size()), rows * row_pieces);
    EXPECT_EQ(*places.begin(), 0);
    EXPECT_EQ(*places.rbegin(), rows * row_pieces - 1);
  }
}

// Sixteen lanes read at once where neighbours share what they read; the eight 16-byte columns of
// shared memory then give each at most one piece.
TEST(FloatTileTest, HalfWarpsReadWithoutBankConflicts) {
  for (const FloatTile& tile : kFloatTiles) {
    const int row_pieces = tile.stage_k() / kFloatPieceK;
    for (int first = 0; first < kFloatGroupThreads; first += 16) {
      for (int piece = 0; piece < row_pieces; ++piece) {
        std::set<int> row_places;
        std::set<int> row_banks;
        std::set<int> column_places;
        std::set<int> column_banks;
        for (int thread = first; thread < first + 16; ++thread) {
          EXPECT_EQ(FloatTileRow(thread), FloatTileRow(thread ^ 1));
          EXPECT_EQ(FloatTileColumn(thread), FloatTileColumn(thread ^ 2));
          const int row = FloatTilePlace(FloatTileRow(thread), piece, row_pieces);
          const int column =
              FloatTilePlace(tile.rows() + FloatTileColumn(thread), piece, row_pieces);
          row_places.insert(row);
          row_banks.insert(row % 8);
          column_places.insert(column);
          column_banks.insert(column % 8);
        }
        EXPECT_EQ(row_places.size(), row_banks.size());
        EXPECT_EQ(column_places.size(), column_banks.size());
      }
    }
  }
}

}  // namespace
}  // namespace warpline::cuda
