#include "coordinator/cache_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace warpline {
namespace {

using testing::ElementsAre;

TEST(CacheAllocatorTest, PagesForRoundsUp) {
  EXPECT_EQ(PagesFor(0), 0);
  EXPECT_EQ(PagesFor(1), 1);
  EXPECT_EQ(PagesFor(64), 1);
  EXPECT_EQ(PagesFor(65), 2);
}

TEST(CacheAllocatorTest, GivesLowestNumbersAndCounts) {
  CacheAllocator cache(2, 5);
  EXPECT_TRUE(cache.CanTake(5));
  EXPECT_FALSE(cache.CanTake(6));
  EXPECT_EQ(cache.TakeSlot().kv_slot, 0);
  EXPECT_THAT(cache.TakePages(3), ElementsAre(0, 1, 2));
  EXPECT_FALSE(cache.CanTake(3));
  EXPECT_TRUE(cache.CanTake(2));
  EXPECT_EQ(cache.TakeSlot().kv_slot, 1);
  EXPECT_FALSE(cache.CanTake(0)) << "no slot is left";
  EXPECT_EQ(cache.slots_used(), 2);
  EXPECT_EQ(cache.pages_used(), 3);
}

TEST(CacheAllocatorTest, ASlotNeverHasTheSameGenerationTwice) {
  CacheAllocator cache(1, 4);
  uint32_t last = 0;
  for (int round = 0; round < 5; ++round) {
    const SlotGrant grant = cache.TakeSlot();
    EXPECT_EQ(grant.kv_slot, 0);
    EXPECT_GT(grant.generation, last);
    last = grant.generation;
    cache.Return(grant.kv_slot, cache.TakePages(4));
  }
  EXPECT_EQ(cache.slots_used(), 0);
  EXPECT_EQ(cache.pages_used(), 0);
}

TEST(CacheAllocatorTest, NoPageIsGivenTwiceWhateverTheOrder) {
  std::mt19937 random(3);
  CacheAllocator cache(8, 100);
  std::vector<std::pair<int, std::vector<uint32_t>>> held;
  for (int round = 0; round < 2000; ++round) {
    const auto wanted = static_cast<int64_t>(random() % 30);
    if (random() % 2 == 0 && cache.CanTake(wanted)) {
      held.emplace_back(cache.TakeSlot().kv_slot, cache.TakePages(wanted));
    } else if (!held.empty()) {
      const size_t index = random() % held.size();
      cache.Return(held[index].first, held[index].second);
      held.erase(held.begin() + static_cast<int64_t>(index));
    }
    std::set<int> slots;
    std::set<uint32_t> pages;
    size_t page_count = 0;
    for (const auto& [slot, its_pages] : held) {
      slots.insert(slot);
      pages.insert(its_pages.begin(), its_pages.end());
      page_count += its_pages.size();
    }
    ASSERT_EQ(slots.size(), held.size());
    ASSERT_EQ(pages.size(), page_count);
    ASSERT_TRUE(pages.empty() || *pages.rbegin() < 100);
    ASSERT_EQ(cache.pages_used(), static_cast<int64_t>(page_count));
    ASSERT_EQ(cache.slots_used(), static_cast<int>(held.size()));
  }
}

TEST(CacheAllocatorDeathTest, ReturningTwiceEndsTheProcess) {
  CacheAllocator cache(2, 4);
  const SlotGrant grant = cache.TakeSlot();
  const std::vector<uint32_t> pages = cache.TakePages(1);
  cache.Return(grant.kv_slot, pages);
  EXPECT_DEATH(cache.Return(grant.kv_slot, pages), "check failed");
}

}  // namespace
}  // namespace warpline
