#include "kernels/cuda/tile_cut.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warpline::cuda {
namespace {

using ::testing::ElementsAre;

const std::vector<TileSize> kSizes = {
    {256, 2.5f}, {192, 2.02f}, {128, 1.41f}, {64, 0.98f}, {32, 0.82f}};

std::vector<int> Tiles(const std::vector<TileSize>& sizes, int rows) {
  const TileCut cut = CutRows(sizes.data(), static_cast<int>(sizes.size()), rows);
  return std::vector<int>(cut.tiles, cut.tiles + sizes.size());
}

double CostOf(const std::vector<TileSize>& sizes, const std::vector<int>& tiles) {
  double cost = 0;
  for (size_t i = 0; i < sizes.size(); ++i) cost += tiles[i] * static_cast<double>(sizes[i].cost);
  return cost;
}

// The least cost of covering each number of rows by tiles of any number.
std::vector<double> LeastCosts(const std::vector<TileSize>& sizes, int most_rows) {
  std::vector<double> least(static_cast<size_t>(most_rows) + 1, 0);
  for (int rows = 1; rows <= most_rows; ++rows) {
    double best = 1e30;
    for (const TileSize& size : sizes) {
      const size_t rest = static_cast<size_t>(std::max(0, rows - size.n));
      best = std::min(best, least[rest] + static_cast<double>(size.cost));
    }
    least[static_cast<size_t>(rows)] = best;
  }
  return least;
}

TEST(TileCutTest, CutsKnownCounts) {
  EXPECT_THAT(Tiles(kSizes, 0), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(Tiles(kSizes, 1), ElementsAre(0, 0, 0, 0, 1));
  EXPECT_THAT(Tiles(kSizes, 32), ElementsAre(0, 0, 0, 0, 1));
  EXPECT_THAT(Tiles(kSizes, 33), ElementsAre(0, 0, 0, 1, 0));
  EXPECT_THAT(Tiles(kSizes, 65), ElementsAre(0, 0, 1, 0, 0));
  // 192 for 2.02 is cheaper than 128 and 32 for 2.23.
  EXPECT_THAT(Tiles(kSizes, 129), ElementsAre(0, 1, 0, 0, 0));
  EXPECT_THAT(Tiles(kSizes, 256), ElementsAre(1, 0, 0, 0, 0));
  EXPECT_THAT(Tiles(kSizes, 264), ElementsAre(1, 0, 0, 0, 1));
  EXPECT_THAT(Tiles(kSizes, 1024), ElementsAre(4, 0, 0, 0, 0));
}

TEST(TileCutTest, CoversAllRowsAtTheLeastCostWithoutAnIdleTile) {
  const std::vector<double> least = LeastCosts(kSizes, 3000);
  for (int rows = 1; rows <= 3000; ++rows) {
    const std::vector<int> tiles = Tiles(kSizes, rows);
    int capacity = 0;
    int smallest = 0;
    for (size_t i = 0; i < kSizes.size(); ++i) {
      capacity += tiles[i] * kSizes[i].n;
      if (tiles[i] > 0) smallest = kSizes[i].n;
    }
    ASSERT_GE(capacity, rows) << rows;
    ASSERT_LT(capacity - smallest, rows) << rows;
    ASSERT_NEAR(CostOf(kSizes, tiles), least[static_cast<size_t>(rows)], 1e-4) << rows;
  }
}

TEST(TileCutTest, TakesOneSizeAlone) {
  const std::vector<TileSize> sizes = {{16, 1}};
  EXPECT_THAT(Tiles(sizes, 1), ElementsAre(1));
  EXPECT_THAT(Tiles(sizes, 16), ElementsAre(1));
  EXPECT_THAT(Tiles(sizes, 33), ElementsAre(3));
  EXPECT_THAT(Tiles(sizes, 160), ElementsAre(10));
}

}  // namespace
}  // namespace warpline::cuda
