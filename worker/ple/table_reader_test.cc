#include "worker/ple/table_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "worker/ple/fakes.h"

namespace warpline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using std::chrono::microseconds;

std::vector<int64_t> RandomRows(int64_t row_count, int count, int seed) {
  std::mt19937 random(seed);
  std::vector<int64_t> rows(count);
  for (int64_t& row : rows) row = random() % row_count;
  return rows;
}

std::vector<int64_t> RowsFrom(int64_t begin, int64_t end) {
  std::vector<int64_t> rows(end - begin);
  std::iota(rows.begin(), rows.end(), begin);
  return rows;
}

// Polls, for what other threads do without telling. Fails the test after a long time.
void Await(const std::function<bool()>& condition) {
  const SteadyTime begin = Now();
  while (!condition()) {
    ASSERT_LT(SecondsSince(begin), 60) << "awaited in vain";
    std::this_thread::yield();
  }
}

class TableReaderTest : public ::testing::Test {
 protected:
  std::unique_ptr<NgramReader> Open(NgramReaderOptions options) {
    absl::StatusOr<std::unique_ptr<NgramReader>> reader =
        TableReader::Open(file_.table(), options, trouble_.Opener());
    EXPECT_TRUE(reader.ok()) << reader.status();
    return *std::move(reader);
  }
  static absl::Status Fetch(NgramReader& reader, const TableFile& file,
                            const std::vector<int64_t>& rows) {
    std::vector<float> out(rows.size() * file.table().row_width, -1);
    const absl::Status status = reader.Fetch(rows, absl::MakeSpan(out));
    if (!status.ok()) return status;
    const std::vector<float> wanted = file.Values(rows);
    EXPECT_TRUE(out.empty() ||
                std::memcmp(out.data(), wanted.data(), out.size() * sizeof(float)) == 0);
    return status;
  }
  absl::Status Fetch(NgramReader& reader, const std::vector<int64_t>& rows) {
    return Fetch(reader, file_, rows);
  }

  TableFile file_;
  DiskTrouble trouble_;
};

TEST_F(TableReaderTest, EveryModeGivesTheSameValues) {
  for (const QuantType type : {QuantType::kQ4_0, QuantType::kBF16}) {
    const TableFile file({.type = type, .row_count = 20'000});
    for (const PleIo io : {PleIo::kAuto, PleIo::kDirect, PleIo::kMmap, PleIo::kRam}) {
      for (const int64_t cache_bytes : {0, 100'000}) {
        absl::StatusOr<std::unique_ptr<NgramReader>> reader =
            OpenNgramReader(file.table(), {.io = io, .cache_bytes = cache_bytes});
        ASSERT_TRUE(reader.ok()) << reader.status();
        for (const int count : {0, 1, 16, 5000, 5000}) {
          EXPECT_TRUE(Fetch(**reader, file, RandomRows(20'000, count, count)).ok());
        }
        const std::vector<int64_t> next = RandomRows(20'000, 2000, 1);
        (*reader)->Prefetch(next);
        EXPECT_TRUE(Fetch(**reader, file, next).ok());
      }
    }
  }
}

TEST_F(TableReaderTest, ATableThatFitsIntoTheCacheIsCopied) {
  const int64_t table_bytes = file_.table().row_count * file_.table().row_bytes();
  const auto mode_with = [this](int64_t cache_bytes) {
    return (*OpenNgramReader(file_.table(), {.cache_bytes = cache_bytes}))->counters().mode;
  };
  EXPECT_EQ(mode_with(table_bytes), PleIo::kRam);
  EXPECT_NE(mode_with(table_bytes - 1), PleIo::kRam);
}

TEST_F(TableReaderTest, PrefetchedRowsAreReadOnceAndAhead) {
  const std::unique_ptr<NgramReader> reader = Open({.io = PleIo::kMmap, .cache_bytes = 0});
  const std::vector<int64_t> rows = RandomRows(3000, 2000, 1);
  const auto unique_count = std::set<int64_t>(rows.begin(), rows.end()).size();
  reader->Prefetch(rows);
  Await([&] { return reader->counters().rows_read == unique_count; });
  trouble_.FailReads(1000);  // Nothing is left to read.
  EXPECT_TRUE(Fetch(*reader, rows).ok());
  EXPECT_EQ(reader->counters().rows_read, unique_count);
  trouble_.FailReads(0);
  EXPECT_TRUE(Fetch(*reader, rows).ok());  // Taken once; without a cache they are read again.
  EXPECT_EQ(reader->counters().rows_read, 2 * unique_count);
}

TEST_F(TableReaderTest, AFetchTakesFromSeveralPrefetchesAndReadsTheRest) {
  const std::unique_ptr<NgramReader> reader = Open({.io = PleIo::kMmap, .cache_bytes = 0});
  reader->Prefetch(RowsFrom(0, 100));
  reader->Prefetch(RowsFrom(50, 200));
  EXPECT_TRUE(Fetch(*reader, RowsFrom(90, 300)).ok());
  EXPECT_EQ(reader->counters().rows_read, 100U + 150U + 100U);
  EXPECT_TRUE(Fetch(*reader, RowsFrom(0, 90)).ok());
  EXPECT_EQ(reader->counters().rows_read, 350U);
}

TEST_F(TableReaderTest, PrefetchesThatNobodyTakesAreForgotten) {
  const std::unique_ptr<NgramReader> reader = Open({.io = PleIo::kMmap, .cache_bytes = 0});
  for (int i = 0; i < 20; ++i) reader->Prefetch(RowsFrom(i * 100, i * 100 + 100));
  const std::vector<int64_t> rows = RowsFrom(0, 100);
  const std::vector<int64_t> last = RowsFrom(1900, 2000);
  EXPECT_TRUE(Fetch(*reader, rows).ok());
  EXPECT_TRUE(Fetch(*reader, last).ok());
}

TEST_F(TableReaderTest, CountsHitsOfTheCacheAndKeepsItsCap) {
  const int64_t row_bytes = file_.table().row_bytes();
  const std::unique_ptr<NgramReader> reader =
      Open({.io = PleIo::kMmap, .cache_bytes = 1000 * (row_bytes + 64)});
  EXPECT_TRUE(Fetch(*reader, RowsFrom(0, 500)).ok());
  EXPECT_TRUE(Fetch(*reader, RowsFrom(0, 500)).ok());
  NgramCounters counters = reader->counters();
  EXPECT_EQ(counters.rows_requested, 1000U);
  EXPECT_EQ(counters.cache_hits, 500U);
  EXPECT_EQ(counters.rows_read, 500U);
  // All rows, twice: only about a third of the 3000 fits, so most are read again.
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(Fetch(*reader, RowsFrom(0, 3000)).ok());
  counters = reader->counters();
  EXPECT_GT(counters.rows_read, 500U + 2500U + 1500U);
}

TEST_F(TableReaderTest, AFailedReadNamesFileAndOffsetAndIsCounted) {
  const std::unique_ptr<NgramReader> reader = Open({.io = PleIo::kMmap, .cache_bytes = 0});
  trouble_.FailReads(2);
  for (uint64_t failed = 1; failed <= 2; ++failed) {
    const absl::Status status = Fetch(*reader, {77, 80});
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(file_.table().path), HasSubstr("Input/output error"),
                      HasSubstr(absl::StrCat(
                          "offset ", file_.table().offset + 77 * file_.table().row_bytes()))));
    EXPECT_EQ(reader->counters().errors, failed);
    EXPECT_EQ(reader->counters().consecutive_errors, failed);
  }
  EXPECT_TRUE(Fetch(*reader, {77, 80}).ok());
  EXPECT_EQ(reader->counters().errors, 2U);
  EXPECT_EQ(reader->counters().consecutive_errors, 0U);
}

TEST_F(TableReaderTest, AFailedPrefetchIsReadAgain) {
  const std::unique_ptr<NgramReader> reader = Open({.io = PleIo::kMmap, .cache_bytes = 0});
  trouble_.FailReads(1);
  reader->Prefetch({5, 6});
  EXPECT_TRUE(Fetch(*reader, {6, 5, 6}).ok());
  EXPECT_EQ(reader->counters().errors, 0U);
  trouble_.FailReads(2);
  reader->Prefetch({5, 6});
  EXPECT_TRUE(absl::IsDataLoss(Fetch(*reader, {6, 5, 6})));
}

TEST_F(TableReaderTest, ADiskThatHangsEndsTheFetchInTime) {
  const std::unique_ptr<NgramReader> reader =
      Open({.io = PleIo::kMmap, .cache_bytes = 0, .max_wait_seconds = 0.05});
  trouble_.Block();
  const SteadyTime begin = Now();
  const absl::Status status = Fetch(*reader, {1, 2, 3});
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(file_.table().path), HasSubstr("0.05 s")));
  reader->Prefetch({4, 5});
  EXPECT_TRUE(absl::IsDeadlineExceeded(Fetch(*reader, {4, 5})));
  EXPECT_LT(SecondsSince(begin), 30);
  EXPECT_EQ(reader->counters().consecutive_errors, 2U);
  trouble_.Unblock();
  Await([&] { return Fetch(*reader, {1, 2, 3, 4, 5}).ok(); });
  EXPECT_EQ(reader->counters().consecutive_errors, 0U);
}

TEST_F(TableReaderTest, ASlowDiskIsAnnounced) {
  const std::unique_ptr<NgramReader> reader =
      Open({.io = PleIo::kMmap, .cache_bytes = 0, .slow_seconds = 0.02});
  trouble_.SetDelay(PleIo::kMmap, microseconds(30'000));
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(Fetch(*reader, {1, 2, 3}).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("the disk is slow"));
  EXPECT_GE(reader->counters().slow_batches, 1U);
}

TEST_F(TableReaderTest, TheProbeAtStartPicksTheFasterMode) {
  trouble_.SetDelay(PleIo::kDirect, microseconds(3000));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Open({.cache_bytes = 0})->counters().mode, PleIo::kMmap);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("mode=mmap rows_per_second direct="), HasSubstr(" mmap=")));
  trouble_.SetDelay(PleIo::kDirect, microseconds(0));
  trouble_.SetDelay(PleIo::kMmap, microseconds(3000));
  EXPECT_EQ(Open({.cache_bytes = 0})->counters().mode, PleIo::kDirect);
}

TEST_F(TableReaderTest, AModeThatWasSlowAtStartIsTakenUpLater) {
  trouble_.SetDelay(PleIo::kDirect, microseconds(20'000));
  trouble_.SetDelay(PleIo::kMmap, microseconds(2000));
  ::testing::internal::CaptureStderr();
  const std::unique_ptr<NgramReader> reader =
      Open({.cache_bytes = 0, .probe_pause_seconds = 0.001});
  EXPECT_EQ(reader->counters().mode, PleIo::kMmap);
  trouble_.SetDelay(PleIo::kDirect, microseconds(0));
  Await([&] { return reader->counters().mode == PleIo::kDirect; });
  EXPECT_EQ(reader->counters().mode_changes, 1U);
  EXPECT_TRUE(Fetch(*reader, RowsFrom(0, 100)).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("mode changes from mmap to direct"));
}

TEST_F(TableReaderTest, AModeThatCannotBeUsedIsReplacedByName) {
  struct Case {
    PleIo unusable;
    PleIo wanted;
    PleIo used;
    std::string line;
  };
  const Case cases[] = {
      {PleIo::kDirect, PleIo::kAuto, PleIo::kMmap, "mode direct cannot be used, mmap takes"},
      {PleIo::kDirect, PleIo::kDirect, PleIo::kMmap, "mode direct cannot be used, mmap takes"},
      {PleIo::kMmap, PleIo::kAuto, PleIo::kDirect, "mode mmap cannot be used, direct takes"},
  };
  for (const Case& one : cases) {
    DiskTrouble trouble;
    trouble.SetUnusable(one.unusable);
    ::testing::internal::CaptureStderr();
    const absl::StatusOr<std::unique_ptr<NgramReader>> reader =
        TableReader::Open(file_.table(), {.io = one.wanted, .cache_bytes = 0}, trouble.Opener());
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr(one.line), HasSubstr("not on this machine")));
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->counters().mode, one.used);
    EXPECT_TRUE(Fetch(**reader, file_, {1, 2}).ok());
  }
  trouble_.SetUnusable(PleIo::kMmap);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      TableReader::Open(file_.table(), {.io = PleIo::kMmap}, trouble_.Opener()).status()));
}

TEST_F(TableReaderTest, ADiskThatFailsAtStartIsRefused) {
  trouble_.FailReads(1);
  const absl::Status status =
      TableReader::Open(file_.table(), {.io = PleIo::kMmap}, trouble_.Opener()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST_F(TableReaderTest, RefusesRowsOutsideOfTheTable) {
  const std::unique_ptr<NgramReader> reader = Open({.io = PleIo::kMmap});
  for (const int64_t row : {int64_t{-1}, int64_t{3000}, int64_t{1} << 40}) {
    reader->Prefetch({row});
    EXPECT_TRUE(absl::IsInvalidArgument(Fetch(*reader, {5, row})));
  }
  std::vector<float> out(file_.table().row_width - 1);
  EXPECT_TRUE(absl::IsInvalidArgument(reader->Fetch({5}, absl::MakeSpan(out))));
  EXPECT_EQ(reader->counters().errors, 0U);
}

TEST_F(TableReaderTest, EndsWhileReadsAreOnTheirWay) {
  for (int i = 0; i < 20; ++i) {
    const std::unique_ptr<NgramReader> reader =
        Open({.io = PleIo::kMmap, .cache_bytes = 0, .probe_pause_seconds = 0.001});
    for (int j = 0; j < 4; ++j) reader->Prefetch(RandomRows(3000, 3000, j));
  }
}

// For the thread sanitizer: the executor, the loader, the chooser and who asks for counters.
TEST_F(TableReaderTest, ThreadsShareWhatTheyMay) {
  trouble_.SetDelay(PleIo::kMmap, microseconds(200));
  const std::unique_ptr<NgramReader> reader =
      Open({.cache_bytes = 100'000, .probe_pause_seconds = 0.001});
  std::atomic<bool> is_done{false};
  std::thread watcher([&] {
    while (!is_done) EXPECT_LE(reader->counters().cache_hits, 100U * 1000U);
  });
  for (int i = 0; i < 100; ++i) {
    // Both ways win in turn, so the mode changes while reads go on.
    const bool direct_is_slow = i / 25 % 2 == 0;
    trouble_.SetDelay(PleIo::kDirect, microseconds(direct_is_slow ? 1000 : 0));
    const std::vector<int64_t> next = RandomRows(3000, 1000, i + 1);
    reader->Prefetch(next);
    EXPECT_TRUE(Fetch(*reader, RandomRows(3000, 1000, i)).ok());
  }
  is_done = true;
  watcher.join();
  EXPECT_EQ(reader->counters().rows_requested, 100U * 1000U);
}

}  // namespace
}  // namespace warpline
