#include "worker/edge_slots.h"

#include <gtest/gtest.h>

#include <thread>

namespace warpline {
namespace {

TEST(EdgeCreditsTest, SlotsComeInTurnAndTheSameUntilCommit) {
  EdgeCredits credits(2);
  EXPECT_EQ(*credits.Acquire(), 0);
  EXPECT_EQ(*credits.Acquire(), 0);
  credits.Commit(10);
  EXPECT_EQ(*credits.Acquire(), 1);
  credits.Commit(11);
  EXPECT_TRUE(credits.Acknowledge(0, 10).ok());
  EXPECT_EQ(*credits.Acquire(), 0);
}

TEST(EdgeCreditsTest, AnAcknowledgementWakesTheWaitForACredit) {
  EdgeCredits credits(1);
  credits.Commit(10);
  int slot = -1;
  std::thread waiter([&] { slot = *credits.Acquire(); });
  EXPECT_TRUE(credits.Acknowledge(0, 10).ok());
  waiter.join();
  EXPECT_EQ(slot, 0);
}

TEST(EdgeCreditsTest, TheEdgesLossWakesTheWaitForGood) {
  EdgeCredits credits(1);
  credits.Commit(10);
  absl::Status status;
  std::thread waiter([&] { status = credits.Acquire().status(); });
  credits.Break(absl::UnavailableError("lost"));
  credits.Break(absl::InternalError("later"));
  waiter.join();
  EXPECT_EQ(status, absl::UnavailableError("lost"));
  EXPECT_EQ(credits.Acquire().status(), absl::UnavailableError("lost"));
}

TEST(EdgeCreditsTest, RefusesAcknowledgementsThatAreNotDue) {
  EdgeCredits credits(3);
  EXPECT_FALSE(credits.Acknowledge(0, 1).ok());
  credits.Commit(10);
  credits.Commit(11);
  EXPECT_FALSE(credits.Acknowledge(1, 11).ok());
  EXPECT_FALSE(credits.Acknowledge(0, 11).ok());
  EXPECT_TRUE(credits.Acknowledge(0, 10).ok());
  EXPECT_FALSE(credits.Acknowledge(0, 10).ok());
}

}  // namespace
}  // namespace warpline
