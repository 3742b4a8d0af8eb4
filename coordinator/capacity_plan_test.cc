#include "coordinator/capacity_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warpline {
namespace {

using testing::HasSubstr;

TEST(CapacityPlanTest, PageBytesOverTheLayersOfAStage) {
  ModelSpec spec;
  spec.head_dim = 64;
  spec.layers = {{.n_head_kv = 3}, {.n_head_kv = 3}, {.n_head_kv = 5}};
  // 64 tokens, keys and values, heads of 64 values.
  EXPECT_EQ(BytesOfState(spec, {0, 2}, v1::KV_CACHE_TYPE_F32).page, 64 * 2 * (3 + 3) * 64 * 4);
  EXPECT_EQ(BytesOfState(spec, {0, 2}, v1::KV_CACHE_TYPE_F16).page, 64 * 2 * (3 + 3) * 64 * 2);
  EXPECT_EQ(BytesOfState(spec, {2, 3}, v1::KV_CACHE_TYPE_Q8_0).page, 64 * 2 * 5 * 2 * 34);
  EXPECT_EQ(BytesOfState(spec, {1, 1}, v1::KV_CACHE_TYPE_F16).page, 0);
}

TEST(CapacityPlanTest, SlotsTakeTheirStateFromThePages) {
  CapacityArgs args{.context = 640,
                    .slot_count = 4,
                    .page_bytes = 10,
                    .slot_bytes = 30,
                    .cache_bytes_limit = 259};
  const auto plan = PlanCapacity(args);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->page_count, (259 - 4 * 30) / 10);
  args.slot_bytes = 65;
  const auto refused = PlanCapacity(args);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("4 sequences"));
}

TEST(CapacityPlanTest, SlotsTimesContextWithoutALimit) {
  const auto plan = PlanCapacity({.context = 100, .slot_count = 3, .page_bytes = 10});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->context, 100);
  EXPECT_EQ(plan->page_count, 3 * 2);
  EXPECT_EQ(plan->slot_count, 3);
}

TEST(CapacityPlanTest, FewerPagesWhenMemoryIsShort) {
  const auto plan =
      PlanCapacity({.context = 640, .slot_count = 4, .page_bytes = 10, .cache_bytes_limit = 259});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->page_count, 25);
  EXPECT_EQ(plan->context, 640) << "one sequence of 10 pages fits";
}

TEST(CapacityPlanTest, ContextIsLoweredOnlyWhenNotOneSequenceFits) {
  const auto plan =
      PlanCapacity({.context = 640, .slot_count = 4, .page_bytes = 10, .cache_bytes_limit = 70});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->page_count, 7);
  EXPECT_EQ(plan->context, 7 * 64);
  EXPECT_EQ(plan->configured_context, 640);
}

TEST(CapacityPlanTest, RefusedWithBothNumbersWhenNotOnePageFits) {
  const auto plan =
      PlanCapacity({.context = 640, .slot_count = 4, .page_bytes = 1000, .cache_bytes_limit = 999});
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("1000 bytes"));
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("999 are left"));
}

TEST(CapacityPlanTest, ThisMachineHasMemory) {
  const std::optional<int64_t> bytes = AvailableMemoryBytes();
  ASSERT_TRUE(bytes.has_value());
  EXPECT_GT(*bytes, 1 << 20);
}

}  // namespace
}  // namespace warpline
