#include "worker/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace warpline {
namespace {

using ::testing::IsEmpty;

constexpr double kRelative = 1e-14;

void ExpectFrequencies(const RopeTable& table, const std::vector<double>& expected) {
  ASSERT_EQ(table.inverse_frequency.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(table.inverse_frequency[i], expected[i], expected[i] * kRelative) << "pair " << i;
  }
}

RopeSpec PlainSpec() {
  return {.style = RopeStyle::kNeox, .n_rot = 8, .freq_base = 10000, .original_context = 2048};
}

TEST(RopeTest, UnscaledAnglesFallGeometrically) {
  // 10000^(-2i/8) = 10^-i.
  const RopeTable table = ComputeRope(PlainSpec(), {});
  ExpectFrequencies(table, {1, 0.1, 0.01, 0.001});
  EXPECT_EQ(table.magnitude, 1);
  EXPECT_FALSE(table.interleaved);
}

// Pairs take turns on three position axes as long as their sections last; what is left is on the
// axis that is 0 for text.
TEST(RopeTest, PairsBeyondTheirSectionsStandStill) {
  RopeSpec spec = PlainSpec();
  spec.n_rot = 16;
  spec.freq_base = 1e8;  // 1e8^(-2i/16) = 10^-i
  spec.sections = {2, 2, 2, 2};
  ExpectFrequencies(ComputeRope(spec, {}), {1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 0, 0});
  spec.sections = {1, 3, 0, 0};  // repeats after four pairs: 0 and 1 move, 2 and 3 do not
  ExpectFrequencies(ComputeRope(spec, {}), {1, 1e-1, 0, 0, 1e-4, 1e-5, 0, 0});
  spec.n_rot = 64;
  spec.sections = {11, 11, 10, 0};
  for (const double frequency : ComputeRope(spec, {}).inverse_frequency) EXPECT_GT(frequency, 0);
}

TEST(RopeTest, StyleChoosesThePairs) {
  RopeSpec spec = PlainSpec();
  spec.style = RopeStyle::kNorm;
  EXPECT_TRUE(ComputeRope(spec, {}).interleaved);
  spec.style = RopeStyle::kNone;
  EXPECT_THAT(ComputeRope(spec, {}).inverse_frequency, IsEmpty());
}

TEST(RopeTest, FactorCountsForLinearScalingOnly) {
  RopeSpec spec = PlainSpec();
  spec.factor = 4;
  spec.scaling = RopeScaling::kNone;
  ExpectFrequencies(ComputeRope(spec, {}), {1, 0.1, 0.01, 0.001});
  spec.scaling = RopeScaling::kLinear;
  ExpectFrequencies(ComputeRope(spec, {}), {0.25, 0.025, 0.0025, 0.00025});
  spec.scaling = RopeScaling::kLongRope;
  ExpectFrequencies(ComputeRope(spec, {}), {1, 0.1, 0.01, 0.001});
}

TEST(RopeTest, FrequencyFactorsDivideBeforeScaling) {
  RopeSpec spec = PlainSpec();
  const std::vector<float> factors = {1, 2, 4, 8};
  ExpectFrequencies(ComputeRope(spec, factors), {1, 0.05, 0.0025, 0.000125});
  spec.scaling = RopeScaling::kLinear;
  spec.factor = 2;
  ExpectFrequencies(ComputeRope(spec, factors), {0.5, 0.025, 0.00125, 0.0000625});
}

TEST(RopeTest, AttnFactorMultipliesForEveryKind) {
  RopeSpec spec = PlainSpec();
  spec.attn_factor = 1.3;
  for (const RopeScaling scaling :
       {RopeScaling::kNone, RopeScaling::kLinear, RopeScaling::kLongRope}) {
    spec.scaling = scaling;
    EXPECT_EQ(ComputeRope(spec, {}).magnitude, 1.3);
  }
}

// 2048 positions: 32 turns are made by pair 16 ln(2048 / (64 pi)) / (2 ln 10000) = 2.016, one turn
// by pair 5.026. So pairs up to 2 keep their angle, pairs from 6 on are interpolated, and the share
// falls by a quarter for each between.
TEST(RopeTest, YarnRampsBetweenKeptAndInterpolatedPairs) {
  const RopeSpec spec = {.style = RopeStyle::kNorm,
                         .scaling = RopeScaling::kYarn,
                         .n_rot = 16,
                         .freq_base = 10000,
                         .factor = 4,
                         .original_context = 2048};
  const RopeTable table = ComputeRope(spec, {});
  const double root = 0.31622776601683794;  // 10000^(-1/8)
  ExpectFrequencies(table,
                    {1, root, 0.1, 0.1 * root * (0.25 * 0.25 + 0.75), 0.01 * (0.5 * 0.25 + 0.5),
                     0.01 * root * (0.75 * 0.25 + 0.25), 0.001 * 0.25, 0.001 * root * 0.25});
  EXPECT_NEAR(table.magnitude, 1.138629436111989, 1e-15);  // 1 + 0.1 ln 4
}

TEST(RopeTest, YarnMagnitudeFollowsItsKeys) {
  RopeSpec spec = PlainSpec();
  spec.scaling = RopeScaling::kYarn;
  spec.factor = 4;
  spec.attn_factor = 1.5;
  EXPECT_NEAR(ComputeRope(spec, {}).magnitude, 1.5 * 1.138629436111989, 1e-14);
  spec.yarn_log_multiplier = 0.5;
  EXPECT_NEAR(ComputeRope(spec, {}).magnitude, 1.5 * 1.0648216253695715, 1e-14);
  spec.factor = 0.5;  // the bracket is 1 when nothing is stretched
  EXPECT_EQ(ComputeRope(spec, {}).magnitude, 1.5);
}

class FrequencyFactorsTest : public ::testing::Test {
 protected:
  void Open(const std::string& name) {
    auto file = GgufFile::Open(std::string(WARPLINE_TEST_DATA "/families/") + name + ".gguf");
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    auto spec = ModelSpec::FromGguf(*file_);
    ASSERT_TRUE(spec.ok()) << spec.status();
    rope_ = spec->rope;
  }
  std::vector<float> Stored(const std::string& name) const {
    const absl::Span<const uint8_t> data = file_->Data(*file_->FindTensor(name));
    std::vector<float> values(data.size() / sizeof(float));
    std::memcpy(values.data(), data.data(), data.size());
    return values;
  }

  std::unique_ptr<GgufFile> file_;
  RopeSpec rope_;
};

TEST_F(FrequencyFactorsTest, NoneWithoutTensors) {
  ASSERT_NO_FATAL_FAILURE(Open("llama-plain"));
  EXPECT_THAT(*FrequencyFactors(*file_, rope_, 4096), IsEmpty());
}

TEST_F(FrequencyFactorsTest, LongRopeChoosesByTheConfiguredContext) {
  ASSERT_NO_FATAL_FAILURE(Open("llama-longrope"));
  ASSERT_EQ(rope_.original_context, 64);
  const std::vector<float> long_factors = Stored("rope_factors_long.weight");
  const std::vector<float> short_factors = Stored("rope_factors_short.weight");
  ASSERT_NE(long_factors, short_factors);
  EXPECT_EQ(*FrequencyFactors(*file_, rope_, 65), long_factors);
  EXPECT_EQ(*FrequencyFactors(*file_, rope_, 64), short_factors);
  rope_.scaling = RopeScaling::kLinear;  // only longrope reads them
  EXPECT_THAT(*FrequencyFactors(*file_, rope_, 65), IsEmpty());
}

TEST_F(FrequencyFactorsTest, TheFilesOwnFactorsGoFirst) {
  ASSERT_NO_FATAL_FAILURE(Open("llama-ropefreqs"));
  const std::vector<float> stored = Stored("rope_freqs.weight");
  EXPECT_EQ(*FrequencyFactors(*file_, rope_, 64), stored);
  rope_.scaling = RopeScaling::kLongRope;
  EXPECT_EQ(*FrequencyFactors(*file_, rope_, 1 << 20), stored);
}

TEST_F(FrequencyFactorsTest, RefusesMissingAndMisshapenTensors) {
  ASSERT_NO_FATAL_FAILURE(Open("llama-plain"));
  rope_.scaling = RopeScaling::kLongRope;
  EXPECT_EQ(FrequencyFactors(*file_, rope_, 64).status().code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_NO_FATAL_FAILURE(Open("llama-ropefreqs"));
  rope_.n_rot += 2;
  EXPECT_EQ(FrequencyFactors(*file_, rope_, 64).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace warpline
