#include "worker/ple/slow_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace warpline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(SlowWatchTest, CountsLongWaitsAndSaysSoOnceInAWhile) {
  SlowWatch watch(1);
  ::testing::internal::CaptureStderr();
  watch.SawWait(PleIo::kMmap, 8192, 0.9);
  EXPECT_EQ(watch.count(), 0U);
  for (int i = 0; i < 5; ++i) watch.SawWait(PleIo::kMmap, 8192, 1.5);
  EXPECT_EQ(watch.count(), 5U);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, AllOf(HasSubstr("the disk is slow"), HasSubstr("waited_seconds=1.5 rows=8192"),
                         HasSubstr("mode=mmap"), HasSubstr("slow_reads=1\n")));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

TEST(SlowWatchTest, ComparesReadsWithTheBestRateOfTheirMode) {
  SlowWatch watch(1);
  watch.Expect(PleIo::kDirect, 80'000);
  watch.Expect(PleIo::kDirect, 100);  // The disk has become slow; that excuses nothing.
  watch.Expect(PleIo::kMmap, 8'000);
  watch.SawRead(PleIo::kDirect, 1000, 1.0 / 11);  // 11,000 rows per second
  watch.SawRead(PleIo::kMmap, 1000, 1.0 / 2);     // 2,000
  watch.SawRead(PleIo::kDirect, 16, 1);           // Too few to judge by.
  EXPECT_EQ(watch.count(), 0U);
  ::testing::internal::CaptureStderr();
  watch.SawRead(PleIo::kDirect, 1000, 1.0 / 9);
  EXPECT_EQ(watch.count(), 1U);
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("rows_per_second=9000 best=80000 mode=direct"), Not(HasSubstr("waited"))));
}

}  // namespace
}  // namespace warpline
