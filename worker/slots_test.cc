#include "worker/slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace warpline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr SlotLimits kLimits = {
    .slot_count = 3, .page_count = 10, .max_context = 200, .max_rows = 100, .n_vocab = 50};

StepEntry Entry(int kv_slot, int64_t position, int row_count, std::vector<int32_t> new_pages) {
  return {.kv_slot = kv_slot,
          .position = position,
          .token_ids = std::vector<int32_t>(row_count, 7),
          .new_pages = std::move(new_pages)};
}

Step StepOf(std::vector<StepEntry> entries) { return {.entries = std::move(entries)}; }

// Pages of each entry, as the back end would see them.
std::vector<std::vector<int32_t>> PagesOf(SlotTable& slots, const Step& step) {
  const absl::Status status = slots.Check(step);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<StepSequence> sequences;
  slots.Advance(step, sequences);
  std::vector<std::vector<int32_t>> pages;
  for (const StepSequence& sequence : sequences) {
    pages.emplace_back(sequence.pages.begin(), sequence.pages.end());
  }
  return pages;
}

TEST(SlotTableTest, PagesGrowWithTheSequence) {
  SlotTable slots(kLimits);
  EXPECT_THAT(PagesOf(slots, StepOf({Entry(1, 0, 60, {4})})), ElementsAre(ElementsAre(4)));
  EXPECT_THAT(PagesOf(slots, StepOf({Entry(1, 60, 4, {})})), ElementsAre(ElementsAre(4)));
  EXPECT_THAT(PagesOf(slots, StepOf({Entry(0, 0, 1, {9, 8}), Entry(1, 64, 1, {2})})),
              ElementsAre(ElementsAre(9, 8), ElementsAre(4, 2)));
  ASSERT_TRUE(slots.Reset(1).ok());
  EXPECT_THAT(PagesOf(slots, StepOf({Entry(1, 0, 65, {3, 4}), Entry(0, 1, 2, {})})),
              ElementsAre(ElementsAre(3, 4), ElementsAre(9, 8)));
  slots.ResetAll();
  EXPECT_THAT(PagesOf(slots, StepOf({Entry(0, 0, 1, {9})})), ElementsAre(ElementsAre(9)));
}

struct BadStep {
  const char* what;
  Step step;
};

StepEntry WithToken(int32_t token_id) {
  StepEntry entry = Entry(2, 0, 3, {5});
  entry.token_ids[1] = token_id;
  return entry;
}

std::vector<BadStep> BadSteps() {
  const int64_t far = std::numeric_limits<int64_t>::max();
  std::vector<int32_t> too_many_pages = {0, 1, 2, 3, 4};
  return {
      {"has no entry", StepOf({})},
      {"kv_slot -1 ", StepOf({Entry(-1, 0, 1, {5})})},
      {"kv_slot 3 ", StepOf({Entry(3, 0, 1, {5})})},
      {"position 1, but kv_slot 2 holds 0", StepOf({Entry(2, 1, 1, {5})})},
      {"position 0, but kv_slot 1 holds 64", StepOf({Entry(1, 0, 1, {5})})},
      {"position -1,", StepOf({Entry(2, -1, 1, {5})})},
      {"position 9223372036854775807,", StepOf({Entry(2, far, 1, {5})})},
      {"the entry has no row", StepOf({Entry(2, 0, 0, {5})})},
      {"token id -1 ", StepOf({WithToken(-1)})},
      {"token id 50 ", StepOf({WithToken(50)})},
      {"page -1 ", StepOf({Entry(2, 0, 1, {-1})})},
      {"page 10 ", StepOf({Entry(2, 0, 1, {10})})},
      {"page 5 occurs twice", StepOf({Entry(2, 0, 1, {5, 5})})},
      {"page 4 occurs twice", StepOf({Entry(1, 64, 1, {4})})},
      {"would have 1 pages, needs 2", StepOf({Entry(1, 64, 1, {})})},
      {"would have 0 pages, needs 1", StepOf({Entry(2, 0, 1, {})})},
      {"would have 5 pages", StepOf({Entry(2, 0, 1, too_many_pages)})},
      {"has 101 rows", StepOf({Entry(2, 0, 100, {5, 6}), Entry(1, 64, 1, {7})})},
      {"beyond max_context 200", StepOf({Entry(1, 64, 137, {5, 6, 7})})},
      {"kv_slot 2 occurs twice", StepOf({Entry(2, 0, 1, {5}), Entry(2, 0, 1, {6})})},
      {"entry 1: token id", StepOf({Entry(1, 64, 1, {6}), WithToken(51)})},
  };
}

TEST(SlotTableTest, RefusesWhatDoesNotFitAndStaysAsItWas) {
  SlotTable slots(kLimits);
  PagesOf(slots, StepOf({Entry(1, 0, 64, {4})}));
  for (const BadStep& bad : BadSteps()) {
    const absl::Status status = slots.Check(bad.step);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.what));
  }
  EXPECT_THAT(PagesOf(slots, StepOf({Entry(1, 64, 1, {5})})), ElementsAre(ElementsAre(4, 5)));
}

TEST(SlotTableTest, RefusesToResetAnUnknownSlot) {
  SlotTable slots(kLimits);
  EXPECT_EQ(slots.Reset(-1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(slots.Reset(3).code(), absl::StatusCode::kInvalidArgument);
}

TEST(SlotTableTest, TheWholeContextCanBeUsed) {
  SlotTable slots(kLimits);
  PagesOf(slots, StepOf({Entry(0, 0, 100, {0, 1, 2, 3})}));
  PagesOf(slots, StepOf({Entry(0, 100, 100, {})}));
  EXPECT_FALSE(slots.Check(StepOf({Entry(0, 200, 1, {})})).ok());
}

}  // namespace
}  // namespace warpline
