#include "worker/ple/row_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

namespace warpline {
namespace {

constexpr int64_t kRowBytes = 24;

// Bytes that tell rows apart.
std::string Content(int64_t row) { return std::string(kRowBytes, static_cast<char>(row * 37 + 1)); }

void Insert(RowCache& cache, int64_t row) {
  cache.Insert(row, reinterpret_cast<const uint8_t*>(Content(row).data()));
}

bool Has(RowCache& cache, int64_t row) {
  const uint8_t* const bytes = cache.Find(row);
  if (bytes == nullptr) return false;
  EXPECT_EQ(std::memcmp(bytes, Content(row).data(), kRowBytes), 0) << row;
  return true;
}

// Bytes that are enough for so many rows and no more.
RowCache CacheOf(int64_t rows) {
  const int64_t bytes_per_row =
      (int64_t{1} << 30) / RowCache(kRowBytes, int64_t{1} << 30).capacity();
  return RowCache(kRowBytes, rows * (bytes_per_row + 1));
}

TEST(RowCacheTest, HoldsWhatFitsUnderItsCap) {
  constexpr int64_t kBytes = 1 << 20;
  RowCache cache(kRowBytes, kBytes);
  // With the index each row takes more than its bytes, but not many times as much.
  EXPECT_LT(cache.capacity(), kBytes / kRowBytes);
  EXPECT_GT(cache.capacity(), kBytes / (kRowBytes + 72));
  for (int64_t row = 0; row < 3 * cache.capacity(); ++row) Insert(cache, row);
  EXPECT_EQ(cache.size(), cache.capacity());
}

TEST(RowCacheTest, WithoutBytesHoldsNothing) {
  for (const int64_t bytes : {int64_t{-1}, int64_t{0}, kRowBytes}) {
    RowCache cache(kRowBytes, bytes);
    EXPECT_EQ(cache.capacity(), 0);
    Insert(cache, 1);
    EXPECT_FALSE(Has(cache, 1));
  }
}

TEST(RowCacheTest, SparesWhatWasFoundOnce) {
  RowCache cache = CacheOf(3);
  ASSERT_EQ(cache.capacity(), 3);
  for (const int64_t row : {1, 2, 3}) Insert(cache, row);
  EXPECT_TRUE(Has(cache, 1));
  Insert(cache, 4);  // The hand passes 1, which was found, and takes 2.
  EXPECT_FALSE(Has(cache, 2));
  EXPECT_TRUE(Has(cache, 3));
  EXPECT_TRUE(Has(cache, 4));
  Insert(cache, 5);  // Passes 3 and comes to 1, which was spared before.
  EXPECT_FALSE(Has(cache, 1));
  EXPECT_TRUE(Has(cache, 3));
  EXPECT_TRUE(Has(cache, 4));
  EXPECT_TRUE(Has(cache, 5));
}

TEST(RowCacheTest, InsertingAgainTakesNoSecondPlace) {
  RowCache cache = CacheOf(2);
  for (const int64_t row : {1, 1, 1, 2}) Insert(cache, row);
  EXPECT_EQ(cache.size(), 2);
  EXPECT_TRUE(Has(cache, 1));
  EXPECT_TRUE(Has(cache, 2));
}

TEST(RowCacheTest, GivesTheRightBytesOverManyReplacements) {
  RowCache cache(kRowBytes, int64_t{1} << 20);
  std::mt19937 random(3);
  int64_t found = 0;
  constexpr int kSteps = 100'000;
  for (int step = 0; step < kSteps; ++step) {
    const int64_t row = random() % (2 * cache.capacity());
    found += Has(cache, row) ? 1 : 0;
    Insert(cache, row);
  }
  // Half of the rows fit, so about half of the later steps find theirs.
  EXPECT_GT(found, kSteps / 3);
  EXPECT_LT(found, kSteps / 2);
}

}  // namespace
}  // namespace warpline
