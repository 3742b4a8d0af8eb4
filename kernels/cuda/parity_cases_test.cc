#include "kernels/cuda/parity_cases.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "kernels/cuda/random_blocks.h"
#include "kernels/quant_decode.h"

namespace warpline::cuda {
namespace {

constexpr float kDeviation = 0.05f;

// What a check multiplies must be ordinary numbers: no infinity, and none so small that errors
// hide.
TEST(ParityCasesTest, RandomBlocksOfEveryTypeDecodeToOrdinaryNumbers) {
  constexpr int64_t kValues = 64 * 256;
  for (const QuantTypeInfo& info : AllQuantTypes()) {
    if (!info.is_weight) continue;
    const std::vector<uint8_t> blocks = RandomBlocks(info.type, kValues, 5, kDeviation);
    ASSERT_EQ(static_cast<int64_t>(blocks.size()), RowBytes(info.type, kValues)) << info.name;
    std::vector<float> values(kValues);
    DequantizeRow(info.type, blocks.data(), kValues, values.data());
    double squares = 0;
    std::set<float> distinct;
    for (const float value : values) {
      ASSERT_TRUE(std::isfinite(value)) << info.name;
      squares += static_cast<double>(value) * value;
      distinct.insert(value);
    }
    const double deviation = std::sqrt(squares / static_cast<double>(kValues));
    EXPECT_GT(deviation, kDeviation / 2) << info.name;
    EXPECT_LT(deviation, kDeviation * 2) << info.name;
    EXPECT_GT(distinct.size(), 16U) << info.name;
  }
}

TEST(ParityCasesTest, BlocksDependOnTheSeedAlone) {
  const auto blocks = [](uint64_t seed) {
    return RandomBlocks(QuantType::kQ4K, 1024, seed, kDeviation);
  };
  EXPECT_EQ(blocks(1), blocks(1));
  EXPECT_NE(blocks(1), blocks(2));
}

TEST(ParityCasesTest, EveryRowHasATokenOfItsOwnAndGapsHaveNone) {
  for (const RowPlan& plan : ParityRowPlans(false)) {
    const RowLayout layout = LayOutRows(plan, 3);
    ASSERT_EQ(layout.count, std::vector<int32_t>(plan.counts.begin(), plan.counts.end()));
    EXPECT_EQ(layout.start[0], plan.base);
    EXPECT_EQ(layout.rows % 8, 0);
    std::vector<int32_t> expected(static_cast<size_t>(layout.rows), -1);
    for (size_t e = 0; e < plan.counts.size(); ++e) {
      EXPECT_EQ(layout.start[e] % 8, 0) << plan.name;
      for (int i = 0; i < plan.counts[e]; ++i) {
        expected[static_cast<size_t>(layout.start[e] + i)] = static_cast<int32_t>(e);
      }
    }
    EXPECT_EQ(layout.expert_of_row, expected) << plan.name;
    EXPECT_EQ(expected.back(), -1) << "no guard rows behind the last expert";
    std::set<int32_t> tokens;
    for (size_t row = 0; row < expected.size(); ++row) {
      if (expected[row] < 0) continue;
      const int32_t token = layout.ids[row];
      EXPECT_TRUE(tokens.insert(token).second) << "token " << token << " twice";
      EXPECT_EQ(layout.slot_row[static_cast<size_t>(token)], static_cast<int32_t>(row));
    }
    EXPECT_EQ(static_cast<int>(tokens.size()) + 2, layout.tokens);
  }
}

TEST(ParityCasesTest, TheRowCountsThatMatterAreThere) {
  std::set<int> counts;
  for (const RowPlan& plan : ParityRowPlans(false)) {
    counts.insert(plan.counts.begin(), plan.counts.end());
  }
  for (const int count : {0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 200, 255, 257, 300, 1000}) {
    EXPECT_EQ(counts.count(count), 1U) << count;
  }
}

TEST(ParityCasesTest, TokensWithoutARowAreNotNumbers) {
  const RowLayout layout = LayOutRows({"two", {1, 1, 0, 0, 0, 0, 0, 0}, 0}, 4);
  constexpr int kWidth = 6;
  const std::vector<uint16_t> x = RandomTokens(layout, kWidth, 9);
  ASSERT_EQ(x.size(), static_cast<size_t>(layout.tokens * kWidth));
  for (size_t i = 0; i < x.size(); ++i) {
    const bool is_used = layout.slot_row[i / kWidth] >= 0;
    const int exponent = (x[i] >> 10) & 31;
    EXPECT_EQ(exponent == 31, !is_used) << i;  // 31: infinity or NaN
    EXPECT_GE(exponent, 12) << i;
  }
}

TEST(ParityCasesTest, OnlyWholeBlocksMakeAShape) {
  EXPECT_FALSE(HasShape(QuantType::kIQ3XXS, {2560, 640, false}));  // blocks of 256
  EXPECT_TRUE(HasShape(QuantType::kIQ4NL, {2560, 640, false}));
  EXPECT_TRUE(HasShape(QuantType::kIQ3XXS, {2048, 768, false}));
}

}  // namespace
}  // namespace warpline::cuda
