#include "worker/ple/ngram_feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "proto/stage_protocol.h"

namespace warpline {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

// A table of one value a row, the row's number. Writes down what was asked of it.
class CountingReader final : public NgramReader {
 public:
  absl::Status Fetch(absl::Span<const int64_t> rows, absl::Span<float> out) override {
    if (fails) return absl::DataLossError("short read");
    for (size_t i = 0; i < rows.size(); ++i) out[i] = static_cast<float>(rows[i]);
    return absl::OkStatus();
  }
  void Prefetch(absl::Span<const int64_t> rows) override {
    prefetched.emplace_back(rows.begin(), rows.end());
  }
  NgramCounters counters() const override { return {}; }

  bool fails = false;
  std::vector<std::vector<int64_t>> prefetched;
};

class NgramFeedTest : public ::testing::Test {
 protected:
  // Bigrams with one head: row = (id ^ 100 * id before) mod 10000; the start and id 7 read as 7.
  static PleSpec Spec() {
    return {.ngram_size = 2,
            .heads_per_ngram = 1,
            .row_width = 1,
            .eos_token_id = 7,
            .multipliers = {1, 100},
            .offsets = {0},
            .moduli = {10000}};
  }
  static float Row(int id, int before) { return static_cast<float>((id ^ (100 * before)) % 10000); }
  static StepEntry Entry(int slot, int64_t position, std::vector<int32_t> ids) {
    return {.kv_slot = slot, .position = position, .token_ids = std::move(ids)};
  }
  std::vector<float> Fetch(std::vector<StepEntry> entries) {
    const Step step{.entries = std::move(entries)};
    std::vector<float> out(step.RowCount(), -1);
    EXPECT_EQ(feed_.Fetch(step, absl::MakeSpan(out)).ok(), !reader_.fails);
    return out;
  }
  void Prefetch(std::vector<StepEntry> entries) { feed_.Prefetch({.entries = std::move(entries)}); }

  CountingReader reader_;
  NgramFeed feed_{Spec(), reader_, 3};
};

TEST_F(NgramFeedTest, EachSlotRemembersItsLastIds) {
  EXPECT_THAT(Fetch({Entry(0, 0, {1, 2}), Entry(2, 0, {5})}),
              ElementsAre(Row(1, 7), Row(2, 1), Row(5, 7)));
  EXPECT_THAT(Fetch({Entry(2, 1, {6, 7, 8}), Entry(0, 2, {3})}),
              ElementsAre(Row(6, 5), Row(7, 6), Row(8, 7), Row(3, 2)));
  feed_.ResetSlot(0);
  EXPECT_THAT(Fetch({Entry(0, 0, {4}), Entry(2, 4, {9})}), ElementsAre(Row(4, 7), Row(9, 8)));
  feed_.ResetAll();
  EXPECT_THAT(Fetch({Entry(2, 0, {9})}), ElementsAre(Row(9, 7)));
}

TEST_F(NgramFeedTest, PrefetchAsksForTheRowsOfComingStepsOnce) {
  Prefetch({Entry(0, 0, {1, 2})});
  Prefetch({Entry(0, 2, {3}), Entry(1, 0, {5})});
  Prefetch({Entry(0, 2, {3})});
  ASSERT_EQ(reader_.prefetched.size(), 2U);
  EXPECT_THAT(reader_.prefetched[0], ElementsAreArray({Row(1, 7), Row(2, 1)}));
  EXPECT_THAT(reader_.prefetched[1], ElementsAreArray({Row(3, 2), Row(5, 7)}));
  // What is told has no influence on what is run.
  EXPECT_THAT(Fetch({Entry(0, 0, {1, 2})}), ElementsAre(Row(1, 7), Row(2, 1)));
  EXPECT_THAT(Fetch({Entry(0, 2, {3}), Entry(1, 0, {5})}), ElementsAre(Row(3, 2), Row(5, 7)));
  Prefetch({Entry(0, 3, {4})});
  EXPECT_THAT(reader_.prefetched.back(), ElementsAreArray({Row(4, 3)}));
}

TEST_F(NgramFeedTest, PrefetchLeavesOutWhatItCannotKnow) {
  Prefetch({Entry(0, 5, {1}), Entry(-1, 0, {1}), Entry(3, 0, {1})});
  EXPECT_THAT(reader_.prefetched, IsEmpty());
  Fetch({Entry(0, 0, {1, 2, 3, 4, 6})});  // Was not told of before.
  Prefetch({Entry(0, 5, {1})});
  EXPECT_THAT(reader_.prefetched.back(), ElementsAreArray({Row(1, 6)}));
}

TEST_F(NgramFeedTest, PrefetchWaitsForTokensThatAreStillToBeDrawn) {
  Prefetch({Entry(0, 0, {1, 2})});
  Prefetch({Entry(0, 2, {kTokenDrawnBefore}), Entry(1, 0, {5})});
  EXPECT_THAT(reader_.prefetched.back(), ElementsAreArray({Row(5, 7)}));
  Fetch({Entry(0, 0, {1, 2})});
  Fetch({Entry(0, 2, {3}), Entry(1, 0, {5})});
  Prefetch({Entry(0, 3, {4})});
  EXPECT_THAT(reader_.prefetched.back(), ElementsAreArray({Row(4, 3)}));
}

TEST_F(NgramFeedTest, PrefetchMayBeToldOfASlotsNextSequenceBeforeItsReset) {
  Fetch({Entry(0, 0, {1, 2, 3})});
  Prefetch({Entry(0, 3, {4})});
  Prefetch({Entry(0, 0, {5, 6})});  // Of the next sequence, while the last step still waits.
  EXPECT_THAT(reader_.prefetched.back(), ElementsAreArray({Row(5, 7), Row(6, 5)}));
  EXPECT_THAT(Fetch({Entry(0, 3, {4})}), ElementsAre(Row(4, 3)));
  feed_.ResetSlot(0);
  Prefetch({Entry(0, 2, {8})});
  EXPECT_THAT(reader_.prefetched.back(), ElementsAreArray({Row(8, 6)}));
  EXPECT_THAT(Fetch({Entry(0, 0, {5, 6})}), ElementsAre(Row(5, 7), Row(6, 5)));
  EXPECT_THAT(Fetch({Entry(0, 2, {8})}), ElementsAre(Row(8, 6)));
  feed_.ResetSlot(0);  // And one that was not told of.
  EXPECT_THAT(Fetch({Entry(0, 0, {9})}), ElementsAre(Row(9, 7)));
  Prefetch({Entry(0, 1, {1})});
  EXPECT_THAT(reader_.prefetched.back(), ElementsAreArray({Row(1, 9)}));
}

TEST_F(NgramFeedTest, AFailedFetchChangesNothing) {
  Fetch({Entry(0, 0, {1})});
  reader_.fails = true;
  Fetch({Entry(0, 1, {2})});
  reader_.fails = false;
  EXPECT_THAT(Fetch({Entry(0, 1, {3})}), ElementsAre(Row(3, 1)));
}

}  // namespace
}  // namespace warpline
