#include "worker/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_detail.h"
#include "base/status.h"
#include "kernels/find_candidates.h"

namespace warpline {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomLogits(int count, double spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, spread);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = static_cast<float>(normal(random));
  return logits;
}

// The rules of sampler.h once more, in double and with a full sort.
std::vector<double> AdjustedLogits(const std::vector<float>& logits, const SamplingParams& params,
                                   const std::vector<int32_t>& history) {
  std::vector<double> adjusted(logits.begin(), logits.end());
  for (const auto& [token, bias] : params.logit_bias) adjusted[token] += bias;
  std::map<int32_t, int> counts;
  const size_t window = params.penalty_window < 0
                            ? history.size()
                            : std::min<size_t>(params.penalty_window, history.size());
  for (size_t i = history.size() - window; i < history.size(); ++i) ++counts[history[i]];
  for (const auto& [token, count] : counts) {
    double& logit = adjusted[token];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    logit -= params.presence_penalty + params.frequency_penalty * count;
  }
  return adjusted;
}

// Probability of each token, in descending order: (token, probability).
std::vector<std::pair<int32_t, double>> ReferenceDistribution(const std::vector<double>& logits,
                                                              const SamplingParams& params) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < order.size())
    order.resize(params.top_k);
  const double largest = logits[order[0]];
  double total = 0;
  for (const int32_t token : order) total += std::exp(logits[token] - largest);
  size_t kept = 0;
  for (double sum = 0;
       kept < order.size() && (kept == 0 || sum < params.top_p || params.top_p == 1);) {
    sum += std::exp(logits[order[kept++]] - largest) / total;
  }
  order.resize(kept);
  while (std::exp(logits[order.back()] - largest) < params.min_p) order.pop_back();
  std::vector<std::pair<int32_t, double>> distribution;
  double scaled_total = 0;
  for (const int32_t token : order) {
    distribution.emplace_back(token, std::exp((logits[token] - largest) / params.temperature));
    scaled_total += distribution.back().second;
  }
  for (auto& [token, probability] : distribution) probability /= scaled_total;
  return distribution;
}

int32_t ReferenceToken(const std::vector<float>& logits, const SamplingParams& params,
                       const std::vector<int32_t>& history, int64_t position) {
  const std::vector<std::pair<int32_t, double>> distribution =
      ReferenceDistribution(AdjustedLogits(logits, params, history), params);
  const double draw = UniformDraw(params.seed, position);
  double sum = 0;
  for (const auto& [token, probability] : distribution) {
    sum += probability;
    if (sum > draw) return token;
  }
  return distribution.back().first;
}

// Asks and draws as a stage does; `logits` are edited in place. `reads`, if given, counts the draws
// that needed the whole row.
absl::StatusOr<int32_t> SampleToken(absl::Span<float> logits, const SamplingParams& params,
                                    const std::vector<int32_t>& history, int64_t position,
                                    int* reads = nullptr) {
  const int n_vocab = static_cast<int>(logits.size());
  DrawPlan plan;
  WL_RETURN_IF_ERROR(PlanDraw(params, history, n_vocab, plan));
  RowCandidates row;
  FindCandidates(plan.query, logits, row);
  return DrawToken(row, params, n_vocab, position, [&]() -> absl::Span<const float> {
    if (reads != nullptr) ++*reads;
    return logits;
  });
}

absl::StatusOr<int32_t> Sample(std::vector<float> logits, const SamplingParams& params,
                               const std::vector<int32_t>& history = {}, int64_t position = 0) {
  return SampleToken(absl::MakeSpan(logits), params, history, position);
}

std::vector<SamplingParams> ManyParams() {
  return {
      {},
      {.temperature = 0.7f},
      {.temperature = 5},
      {.top_k = 1},
      {.top_k = 40},
      {.temperature = 2, .top_k = 40, .top_p = 0.95f},
      {.top_p = 0.9f},
      {.top_p = 1e-9f},
      {.min_p = 0.05f},
      {.temperature = 1.5f, .top_k = 100, .top_p = 0.99f, .min_p = 0.1f},
      {.top_k = 1 << 30},
      {.repetition_penalty = 1.3f, .penalty_window = 8},
      {.presence_penalty = 0.7f, .frequency_penalty = 0.3f, .penalty_window = -1},
      {.temperature = 0.9f,
       .top_p = 0.8f,
       .repetition_penalty = 1.1f,
       .logit_bias = {{3, 5.0f}, {4, -kInfinity}, {499, -2.0f}}},
  };
}

TEST(SamplerTest, AgreesWithAPlainReference) {
  const std::vector<int32_t> history = {1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 144, 233, 2, 2};
  for (const double spread : {0.01, 1.0, 4.0, 30.0}) {
    const std::vector<float> logits = RandomLogits(500, spread, 11);
    for (SamplingParams params : ManyParams()) {
      for (uint64_t seed = 0; seed < 50; ++seed) {
        params.seed = seed;
        const int64_t position = 7 + static_cast<int64_t>(seed);
        const absl::StatusOr<int32_t> token = Sample(logits, params, history, position);
        ASSERT_TRUE(token.ok()) << token.status();
        EXPECT_EQ(*token, ReferenceToken(logits, params, history, position))
            << "spread " << spread << " temperature " << params.temperature << " top_k "
            << params.top_k << " top_p " << params.top_p << " seed " << seed;
      }
    }
  }
}

TEST(SamplerTest, DrawsFollowTheDistribution) {
  constexpr int kDraws = 20000;
  const std::vector<float> logits = RandomLogits(12, 1.0, 5);
  const SamplingParams base = {.temperature = 0.8f, .top_p = 0.97f};
  const auto distribution = ReferenceDistribution({logits.begin(), logits.end()}, base);
  ASSERT_GT(distribution.size(), 5u);
  for (const bool over_seeds : {true, false}) {
    std::map<int32_t, int> counts;
    for (int i = 0; i < kDraws; ++i) {
      SamplingParams params = base;
      params.seed = over_seeds ? i : 99;
      ++counts[*Sample(logits, params, {}, over_seeds ? 40 : i)];
    }
    double chi_square = 0;
    int counted = 0;
    for (const auto& [token, probability] : distribution) {
      const double expected = probability * kDraws;
      chi_square += (counts[token] - expected) * (counts[token] - expected) / expected;
      counted += counts[token];
    }
    EXPECT_EQ(counted, kDraws) << "a token outside the distribution was drawn";
    // Mean d, standard deviation sqrt(2 d) for d degrees of freedom: five deviations of room.
    const double freedom = static_cast<double>(distribution.size() - 1);
    EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom));
  }
}

TEST(SamplerTest, UniformDrawsAreSpreadAndDistinct) {
  std::set<double> draws;
  std::vector<int> buckets(16);
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (int64_t position = 0; position < 200; ++position) {
      const double draw = UniformDraw(seed, position);
      ASSERT_GE(draw, 0);
      ASSERT_LT(draw, 1);
      draws.insert(draw);
      ++buckets[static_cast<int>(draw * 16)];
    }
  }
  EXPECT_EQ(draws.size(), 20000u);
  for (const int bucket : buckets) EXPECT_NEAR(bucket, 1250, 5 * std::sqrt(1250.0));
}

TEST(SamplerTest, ADrawDependsOnItsOwnArgumentsOnly) {
  const std::vector<float> logits = RandomLogits(1000, 2, 3);
  const SamplingParams params = {.top_p = 0.9f, .seed = 77};
  const int32_t alone = *Sample(logits, params, {5, 6}, 12);
  for (int other = 0; other < 20; ++other) {
    // What other sequences draw in between changes nothing.
    ASSERT_TRUE(Sample(RandomLogits(1000, 2, other), {.seed = 77}, {1}, 12).ok());
    EXPECT_EQ(*Sample(logits, params, {5, 6}, 12), alone);
  }
  std::set<int32_t> by_position;
  for (int64_t position = 0; position < 50; ++position)
    by_position.insert(*Sample(logits, params, {5, 6}, position));
  EXPECT_GT(by_position.size(), 10u);
}

TEST(SamplerTest, GreedyTakesTheLowestOfTheLargest) {
  EXPECT_EQ(*Sample({1, 3, 3, 2}, {.temperature = 0}), 1);
  EXPECT_EQ(*Sample({-5}, {.temperature = 0}), 0);
  std::vector<float> many(1003, -2);
  many[1002] = -1;
  EXPECT_EQ(*Sample(many, {.temperature = 0}), 1002);
  many[700] = many[17] = 4;
  EXPECT_EQ(*Sample(many, {.temperature = 0, .top_k = 5, .top_p = 0.1f}), 17);
}

TEST(SamplerTest, ExtremeTemperaturesStayNumbers) {
  const std::vector<float> logits = {1, 2.5f, 2.4f, -300};
  for (const float tiny : {1e-30f, 1e-45f}) {
    for (uint64_t seed = 0; seed < 50; ++seed)
      EXPECT_EQ(*Sample(logits, {.temperature = tiny, .seed = seed}), 1);
  }
  // Two equal ones share the probability even then.
  std::set<int32_t> drawn;
  for (uint64_t seed = 0; seed < 50; ++seed)
    drawn.insert(*Sample({3, 3, 1}, {.temperature = 1e-30f, .seed = seed}));
  EXPECT_THAT(drawn, testing::ElementsAre(0, 1));
  std::map<int32_t, int> counts;
  for (uint64_t seed = 0; seed < 4000; ++seed)
    ++counts[*Sample(logits, {.temperature = 1e30f, .seed = seed})];
  for (int32_t token = 0; token < 4; ++token) EXPECT_NEAR(counts[token], 1000, 150);
  // The widest spread that floats can hold.
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(*Sample({-largest, largest, 0}, {.temperature = 1}), 1);
  EXPECT_EQ(*Sample({-largest, largest, 0}, {.temperature = 1, .top_k = 2, .top_p = 0.5f}), 1);
}

TEST(SamplerTest, LimitsAtTheirBounds) {
  const std::vector<float> logits = {0, 1, 2, 1.9f};
  for (uint64_t seed = 0; seed < 200; ++seed) {
    EXPECT_EQ(*Sample(logits, {.top_p = 0, .seed = seed}), 2);
    EXPECT_EQ(*Sample(logits, {.min_p = 1, .seed = seed}), 2);
    EXPECT_EQ(*Sample(logits, {.top_k = 1, .seed = seed}), 2);
    const int32_t two = *Sample(logits, {.temperature = 3, .top_k = 2, .seed = seed});
    EXPECT_TRUE(two == 2 || two == 3);
    EXPECT_EQ(*Sample(logits, {.top_k = 4, .seed = seed}), *Sample(logits, {.seed = seed}));
    EXPECT_EQ(*Sample(logits, {.top_k = 2147483647, .seed = seed}),
              *Sample(logits, {.seed = seed}));
  }
  // Equal logits at the edge of top-k: the lower ids stay.
  for (uint64_t seed = 0; seed < 100; ++seed)
    EXPECT_LT(*Sample({1, 1, 1, 1}, {.top_k = 2, .seed = seed}), 2);
}

TEST(SamplerTest, PenaltiesChangeLogitsAsStated) {
  std::vector<float> logits = {2, -2, 2, 2, 1};
  const SamplingParams params = {.temperature = 0,
                                 .repetition_penalty = 2,
                                 .presence_penalty = 0.5f,
                                 .frequency_penalty = 0.25f,
                                 .penalty_window = 3};
  // Token 3 stands outside the window of the last three; token 0 occurs twice in it.
  const std::vector<int32_t> history = {3, 3, 0, 1, 0};
  EXPECT_EQ(*SampleToken(absl::MakeSpan(logits), params, history, 5), 2);
  EXPECT_THAT(logits, testing::ElementsAre(0.0f, -4.75f, 2.0f, 2.0f, 1.0f));
}

TEST(SamplerTest, PenaltyWindowIsClipped) {
  const auto penalised = [](int32_t window) {
    std::vector<float> logits = {1, 1, 1, 1};
    const SamplingParams params = {
        .temperature = 0, .presence_penalty = 1, .penalty_window = window};
    EXPECT_TRUE(SampleToken(absl::MakeSpan(logits), params, {0, 1, 2}, 3).ok());
    return logits;
  };
  EXPECT_THAT(penalised(0), testing::ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(penalised(1), testing::ElementsAre(1, 1, 0, 1));
  EXPECT_THAT(penalised(1000), testing::ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(penalised(-1), testing::ElementsAre(0, 0, 0, 1));
}

TEST(SamplerTest, BiasForcesAndForbids) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    EXPECT_EQ(*Sample({1, 2, 3}, {.seed = seed, .logit_bias = {{0, 100.0f}}}), 0);
    EXPECT_EQ(*Sample({9, 2, 9},
                      {.top_k = 3, .seed = seed, .logit_bias = {{0, -kInfinity}, {2, -kInfinity}}}),
              1);
  }
  // A forbidden token stays so, whatever follows.
  EXPECT_EQ(
      *Sample(
          {9, 2},
          {.temperature = 0, .frequency_penalty = -50, .logit_bias = {{0, -kInfinity}, {0, 90.0f}}},
          {0, 0}),
      1);
}

TEST(SamplerTest, ReportsWhenNoTokenIsLeft) {
  for (const float temperature : {0.0f, 1.0f}) {
    const absl::StatusOr<int32_t> token = Sample(
        {1, 2}, {.temperature = temperature, .logit_bias = {{0, -kInfinity}, {1, -kInfinity}}});
    EXPECT_EQ(token.status().code(), absl::StatusCode::kInternal);
    EXPECT_EQ(DetailOf(token.status()).code, "no_valid_token");
  }
}

TEST(SamplerTest, ReportsNonFiniteLogits) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    for (const float temperature : {0.0f, 1.0f}) {
      const absl::StatusOr<int32_t> token =
          Sample({1, bad, 3}, {.temperature = temperature, .logit_bias = {{1, -kInfinity}}});
      EXPECT_EQ(token.status().code(), absl::StatusCode::kInternal);
      EXPECT_EQ(DetailOf(token.status()).code, "numerical_error");
    }
  }
}

TEST(SamplerTest, AsksForNoMoreThanTheDrawNeeds) {
  const auto query = [](const SamplingParams& params) {
    DrawPlan plan;
    EXPECT_TRUE(PlanDraw(params, {}, 1000, plan).ok());
    return plan.query;
  };
  const CandidateQuery greedy = query({.temperature = 0, .top_k = 20, .top_p = 0.5f});
  EXPECT_EQ(greedy.most, 1);
  EXPECT_EQ(greedy.temperature, 0);
  const CandidateQuery top_k = query({.temperature = 2, .top_k = 20, .top_p = 0.5f});
  EXPECT_EQ(top_k.least, 20);
  EXPECT_EQ(top_k.most, 20);
  EXPECT_EQ(top_k.temperature, 0);
  EXPECT_EQ(query({.top_k = 999}).least, kMaxCandidates);
  EXPECT_EQ(query({.temperature = 0.5f}).temperature, 0.5);
  EXPECT_EQ(query({.temperature = 0.5f, .top_k = 1000}).temperature, 0.5);
  EXPECT_EQ(query({.temperature = 0.5f, .top_p = 0.9f}).temperature, 1);
  EXPECT_EQ(query({.temperature = 0.5f, .min_p = 0.1f}).temperature, 0);
  EXPECT_EQ(query({.temperature = 0.5f, .min_p = 0.1f}).least, 1);
}

TEST(SamplerTest, OrdersTheEditsOfEachToken) {
  const SamplingParams params = {.frequency_penalty = 1,
                                 .logit_bias = {{5, 1.0f}, {2, 2.0f}, {5, 3.0f}}};
  DrawPlan plan;
  ASSERT_TRUE(PlanDraw(params, std::vector<int32_t>{5, 1, 5}, 10, plan).ok());
  std::vector<std::string> edits;
  for (const LogitEdit& edit : plan.query.edits) {
    edits.push_back(absl::StrCat(edit.token_id, " bias ", edit.bias, " count ", edit.count));
  }
  EXPECT_THAT(edits,
              testing::ElementsAre("1 bias 0 count 1", "2 bias 2 count 0", "5 bias 1 count 0",
                                   "5 bias 3 count 0", "5 bias 0 count 2"));
}

// A device names as many candidates as it likes; where they end changes no draw.
TEST(SamplerTest, DrawsTheSameFromFewerCandidates) {
  const std::vector<SamplingParams> settings = {
      {.temperature = 1.5f}, {.top_k = 40},
      {.top_k = 600},        {.top_p = 0.95f},
      {.min_p = 0.01f},      {.temperature = 2, .top_k = 300, .top_p = 0.9f, .min_p = 0.001f}};
  int reads = 0;
  const std::vector<float> logits = RandomLogits(1000, 2, 11);
  for (SamplingParams params : settings) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
      params.seed = seed;
      DrawPlan plan;
      ASSERT_TRUE(PlanDraw(params, {}, 1000, plan).ok());
      plan.query.least = plan.query.most;
      std::vector<float> edited = logits;
      RowCandidates row;
      FindCandidates(plan.query, absl::MakeSpan(edited), row);
      ASSERT_EQ(row.candidates.size(), static_cast<size_t>(plan.query.most));
      const int32_t expected = ReferenceToken(logits, params, {}, 3);
      for (const size_t named : {256, 100, 10, 1}) {
        if (named < row.candidates.size()) row.candidates.resize(named);
        const absl::StatusOr<int32_t> token =
            DrawToken(row, params, 1000, 3, [&]() -> absl::Span<const float> {
              ++reads;
              return edited;
            });
        EXPECT_EQ(*token, expected) << named << " named, seed " << seed;
      }
    }
  }
  EXPECT_GT(reads, 0);
}

TEST(SamplerTest, ReadsTheRowOnlyForDrawsBeyondTheCandidates) {
  std::vector<float> peaked(5000, -30);
  for (int token = 0; token < 50; ++token) peaked[token * 7] = static_cast<float>(token % 10) / 3;
  int reads = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (SamplingParams params :
         {SamplingParams{.temperature = 0}, SamplingParams{.temperature = 1},
          SamplingParams{.top_k = 40}, SamplingParams{.top_p = 0.9f}}) {
      params.seed = seed;
      EXPECT_TRUE(SampleToken(absl::MakeSpan(peaked), params, {}, 1, &reads).ok());
    }
  }
  EXPECT_EQ(reads, 0);
  std::vector<float> flat(5000, 1);
  EXPECT_TRUE(SampleToken(absl::MakeSpan(flat), {.top_k = 4000, .seed = 1}, {}, 1, &reads).ok());
  EXPECT_EQ(reads, 1);
}

TEST(SamplerTest, ReturnsWhatFailedWhenTheRowCannotBeRead) {
  const RowCandidates row{.largest = 1, .weight_sum = 1000, .candidates = {{1, 7}}};
  for (const SamplingParams& params :
       {SamplingParams{.seed = 1}, SamplingParams{.top_k = 3}, SamplingParams{.top_p = 0.5f}}) {
    const absl::StatusOr<int32_t> token = DrawToken(
        row, params, 1000, 2, [] { return absl::UnavailableError("the device is gone"); });
    EXPECT_EQ(token.status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST(SamplerTest, RefusesParametersOutOfRange) {
  const std::vector<SamplingParams> bad = {
      {.temperature = -1},
      {.temperature = kNan},
      {.temperature = kInfinity},
      {.top_p = -0.1f},
      {.top_p = 1.1f},
      {.top_p = kNan},
      {.min_p = 1.1f},
      {.min_p = -1},
      {.repetition_penalty = 0},
      {.repetition_penalty = -3},
      {.repetition_penalty = kInfinity},
      {.presence_penalty = kNan},
      {.frequency_penalty = kInfinity},
      {.logit_bias = {{-1, 1.0f}}},
      {.logit_bias = {{3, 1.0f}}},
      {.logit_bias = {{0, kInfinity}}},
      {.logit_bias = {{0, kNan}}},
  };
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(Sample({1, 2, 3}, bad[i]).status().code(), absl::StatusCode::kInvalidArgument) << i;
  }
  for (const int32_t token : {-1, 3}) {
    EXPECT_EQ(Sample({1, 2, 3}, {.presence_penalty = 1}, {token}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace warpline
