#include "coordinator/split_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace warpline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int> Firsts(const SplitPlan& plan) {
  std::vector<int> firsts;
  for (const StagePlan& stage : plan.stages) firsts.push_back(stage.layers.begin);
  return firsts;
}

int64_t Largest(const SplitPlan& plan) {
  int64_t largest = 0;
  for (const StagePlan& stage : plan.stages) largest = std::max(largest, stage.weight_bytes);
  return largest;
}

// The smallest largest stage over every way of cutting, by trying them all.
int64_t LeastByTrying(const ModelBytes& bytes, int stages, int begin = 0) {
  const int layers = static_cast<int>(bytes.layers.size());
  const int64_t extra = begin == 0 ? bytes.embedding : 0;
  if (stages == 1) {
    return std::accumulate(bytes.layers.begin() + begin, bytes.layers.end(), extra + bytes.head);
  }
  int64_t best = INT64_MAX;
  int64_t here = extra;
  for (int end = begin + 1; end <= layers - (stages - 1); ++end) {
    here += bytes.layers[end - 1];
    best = std::min(best, std::max(here, LeastByTrying(bytes, stages - 1, end)));
  }
  return best;
}

TEST(SplitPlanTest, ExplicitFirstLayersAreTaken) {
  const ModelBytes bytes{.layers = {1, 2, 4, 8, 16}, .embedding = 100, .head = 1000};
  const auto plan = ExplicitSplit(bytes, 3, {1, 4});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->stages.size(), 3u);
  EXPECT_EQ(plan->stages[0].layers, (LayerRange{0, 1}));
  EXPECT_EQ(plan->stages[1].layers, (LayerRange{1, 4}));
  EXPECT_EQ(plan->stages[2].layers, (LayerRange{4, 5}));
  EXPECT_EQ(plan->stages[0].weight_bytes, 101);
  EXPECT_EQ(plan->stages[1].weight_bytes, 14);
  EXPECT_EQ(plan->stages[2].weight_bytes, 1016);
}

TEST(SplitPlanTest, OneStageHoldsEverything) {
  const ModelBytes bytes{.layers = {3, 4}, .embedding = 10, .head = 20};
  for (const auto& plan : {ExplicitSplit(bytes, 1, {}), BalancedSplit(bytes, 1)}) {
    ASSERT_TRUE(plan.ok());
    ASSERT_EQ(plan->stages.size(), 1u);
    EXPECT_EQ(plan->stages[0].layers, (LayerRange{0, 2}));
    EXPECT_EQ(plan->stages[0].weight_bytes, 37);
  }
}

TEST(SplitPlanTest, OneStageHoldsATiedEmbeddingOnce) {
  const ModelBytes bytes{.layers = {3, 4}, .embedding = 10, .head = 11, .shared_ends = 10};
  EXPECT_EQ(BalancedSplit(bytes, 1)->stages[0].weight_bytes, 3 + 4 + 10 + 1);
  const auto two = BalancedSplit(bytes, 2);
  EXPECT_EQ(two->stages[0].weight_bytes, 10 + 3);
  EXPECT_EQ(two->stages[1].weight_bytes, 4 + 11);
}

TEST(SplitPlanTest, RefusesWrongFirstLayersWithTheValidRange) {
  const ModelBytes bytes{.layers = std::vector<int64_t>(12, 1)};
  const struct {
    int stages;
    std::vector<int> first_layers;
    const char* message;
  } cases[] = {
      {2, {10, 38}, "2 workers have 1 later stages"},
      {3, {4}, "3 workers have 2 later stages"},
      {3, {8, 4}, "layer 4 after 8"},
      {3, {4, 4}, "layer 4 after 4"},
      {2, {0}, "valid range 1 to 11"},
      {2, {-3}, "valid range 1 to 11"},
      {2, {12}, "valid range 1 to 11"},
      {13, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, "1 to 12 workers"},
      {0, {}, "1 to 12 workers"},
  };
  for (const auto& one : cases) {
    const auto plan = ExplicitSplit(bytes, one.stages, one.first_layers);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument) << one.message;
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr(one.message));
  }
  EXPECT_EQ(BalancedSplit(bytes, 13).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SplitPlanTest, BalancedCountsEmbeddingAndHead) {
  // The head weighs as much as eight layers: the last stage gets few.
  const ModelBytes bytes{.layers = std::vector<int64_t>(10, 1), .embedding = 0, .head = 8};
  const auto plan = BalancedSplit(bytes, 2);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(Firsts(*plan), ElementsAre(0, 9));
  EXPECT_EQ(Largest(*plan), 9);
}

TEST(SplitPlanTest, BalancedHasTheLeastLargestStageOfAllSplits) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    ModelBytes bytes{.embedding = static_cast<int64_t>(random() % 30),
                     .head = static_cast<int64_t>(random() % 30)};
    const int layers = 1 + static_cast<int>(random() % 9);
    for (int layer = 0; layer < layers; ++layer) bytes.layers.push_back(1 + random() % 20);
    const int stages = 1 + static_cast<int>(random() % layers);
    const auto plan = BalancedSplit(bytes, stages);
    ASSERT_TRUE(plan.ok());
    ASSERT_EQ(plan->stages.size(), static_cast<size_t>(stages));
    int next = 0;
    int64_t total = 0;
    for (const StagePlan& stage : plan->stages) {
      EXPECT_EQ(stage.layers.begin, next);
      EXPECT_GE(stage.layers.size(), 1);
      next = stage.layers.end;
      total += stage.weight_bytes;
    }
    EXPECT_EQ(next, layers);
    EXPECT_EQ(total, std::accumulate(bytes.layers.begin(), bytes.layers.end(),
                                     bytes.embedding + bytes.head));
    EXPECT_EQ(Largest(*plan), LeastByTrying(bytes, stages));
  }
}

}  // namespace
}  // namespace warpline
