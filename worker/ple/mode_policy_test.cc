#include "worker/ple/mode_policy.h"

#include <gtest/gtest.h>

namespace warpline {
namespace {

TEST(ModePolicyTest, StartsWithTheFastest) {
  EXPECT_EQ(ModePolicy({100, 50}).current(), 0U);
  EXPECT_EQ(ModePolicy({100, 101}).current(), 1U);
  EXPECT_EQ(ModePolicy({0, 1}).current(), 1U);
  EXPECT_EQ(ModePolicy({7}).current(), 0U);
}

TEST(ModePolicyTest, ChangesAfterThreeClearWinsInARow) {
  ModePolicy policy({100, 50});
  EXPECT_FALSE(policy.Observe({100, 121}));
  EXPECT_FALSE(policy.Observe({100, 500}));
  EXPECT_EQ(policy.wins(), 2);
  EXPECT_EQ(policy.current(), 0U);
  EXPECT_TRUE(policy.Observe({10, 13}));
  EXPECT_EQ(policy.current(), 1U);
  EXPECT_EQ(policy.wins(), 0);
}

TEST(ModePolicyTest, OneBadReadingDecidesNothing) {
  ModePolicy policy({100, 50});
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(policy.Observe({1, 50}));
    EXPECT_FALSE(policy.Observe({0, 50}));
    EXPECT_FALSE(policy.Observe({100, 50}));
  }
  EXPECT_EQ(policy.current(), 0U);
}

TEST(ModePolicyTest, ALittleFasterIsNotEnough) {
  ModePolicy policy({100, 50});
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(policy.Observe({100, 120}));
  EXPECT_EQ(policy.current(), 0U);
}

TEST(ModePolicyTest, GoingBackTakesThreeWinsToo) {
  ModePolicy policy({50, 100});
  for (int i = 0; i < 3; ++i) policy.Observe({200, 100});
  ASSERT_EQ(policy.current(), 0U);
  EXPECT_FALSE(policy.Observe({50, 100}));
  EXPECT_FALSE(policy.Observe({50, 100}));
  EXPECT_TRUE(policy.Observe({50, 100}));
  EXPECT_EQ(policy.current(), 1U);
}

TEST(ModePolicyTest, WinsOfDifferentChallengersDoNotAddUp) {
  ModePolicy policy({100, 1, 1});
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(policy.Observe({100, 200, 1}));
    EXPECT_FALSE(policy.Observe({100, 1, 200}));
  }
}

TEST(MedianTest, IsTheMiddleOne) {
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({9, 0, 5}), 5);
  EXPECT_EQ(Median({4, 1, 3, 2}), 2);
}

}  // namespace
}  // namespace warpline
