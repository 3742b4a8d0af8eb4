#include "coordinator/request_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/error_detail.h"

namespace warpline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kVocab = 100;

TEST(SamplingTest, DefaultsAreFilledIn) {
  const auto sampling = CheckSampling({}, kVocab, {});
  ASSERT_TRUE(sampling.ok());
  EXPECT_EQ(sampling->temperature(), 1);
  EXPECT_EQ(sampling->top_k(), 0);
  EXPECT_EQ(sampling->top_p(), 1);
  EXPECT_EQ(sampling->min_p(), 0);
  EXPECT_EQ(sampling->repetition_penalty(), 1);
  EXPECT_EQ(sampling->penalty_window(), 64);
  EXPECT_EQ(sampling->bias_ids_size(), 0);
}

TEST(SamplingTest, AMissingSeedIsDrawnAnewAndAGivenOneKept) {
  EXPECT_NE(CheckSampling({}, kVocab, {})->seed(), CheckSampling({}, kVocab, {})->seed());
  for (int i = 0; i < 20; ++i) EXPECT_LT(CheckSampling({}, kVocab, {})->seed(), uint64_t{1} << 53);
  v1::SamplingOptions options;
  options.set_seed(0);
  EXPECT_EQ(CheckSampling(options, kVocab, {})->seed(), 0u);
}

TEST(SamplingTest, ValuesOutOfRangeAreRefusedByName) {
  using Options = v1::SamplingOptions;
  const struct {
    const char* field;
    std::function<void(Options&)> set;
  } cases[] = {
      {"temperature", [](Options& o) { o.set_temperature(-1); }},
      {"temperature", [](Options& o) { o.set_temperature(kNan); }},
      {"temperature", [](Options& o) { o.set_temperature(kInfinity); }},
      {"top_k", [](Options& o) { o.set_top_k(-2); }},
      {"top_p", [](Options& o) { o.set_top_p(1.1F); }},
      {"top_p", [](Options& o) { o.set_top_p(-0.1F); }},
      {"top_p", [](Options& o) { o.set_top_p(kNan); }},
      {"min_p", [](Options& o) { o.set_min_p(1.1F); }},
      {"repetition_penalty", [](Options& o) { o.set_repetition_penalty(0); }},
      {"repetition_penalty", [](Options& o) { o.set_repetition_penalty(-3); }},
      {"repetition_penalty", [](Options& o) { o.set_repetition_penalty(1e9F); }},
      {"repetition_penalty", [](Options& o) { o.set_repetition_penalty(kNan); }},
      {"presence_penalty", [](Options& o) { o.set_presence_penalty(2.5F); }},
      {"frequency_penalty", [](Options& o) { o.set_frequency_penalty(-2.5F); }},
      {"penalty_window", [](Options& o) { o.set_penalty_window(-2); }},
      {"logit_bias", [](Options& o) { (*o.mutable_logit_bias())[-1] = 1; }},
      {"logit_bias", [](Options& o) { (*o.mutable_logit_bias())[kVocab] = 1; }},
      {"logit_bias", [](Options& o) { (*o.mutable_logit_bias())[1] = 1e9F; }},
      {"logit_bias", [](Options& o) { (*o.mutable_logit_bias())[1] = kNan; }},
      {"logit_bias", [](Options& o) { (*o.mutable_logit_bias())[1] = kInfinity; }},
  };
  for (const auto& one : cases) {
    Options options;
    one.set(options);
    const absl::Status status = CheckSampling(options, kVocab, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.field;
    EXPECT_EQ(DetailOf(status).param, one.field) << status;
  }
}

TEST(SamplingTest, ExtremeValuesThatMakeSenseAreTaken) {
  for (const float temperature : {0.0F, 1e-30F, 1e30F}) {
    v1::SamplingOptions options;
    options.set_temperature(temperature);
    options.set_top_p(0);
    options.set_top_k(-1);
    options.set_penalty_window(-1);
    (*options.mutable_logit_bias())[3] = -kInfinity;
    const auto sampling = CheckSampling(options, kVocab, {});
    ASSERT_TRUE(sampling.ok()) << sampling.status();
    EXPECT_EQ(sampling->temperature(), temperature);
    EXPECT_EQ(sampling->top_k(), 0);
    EXPECT_EQ(sampling->bias_values(0), -kInfinity);
  }
}

TEST(SamplingTest, AtMost1024Biases) {
  v1::SamplingOptions options;
  for (int id = 0; id < 1024; ++id) (*options.mutable_logit_bias())[id] = 1;
  EXPECT_TRUE(CheckSampling(options, 5000, {}).ok());
  (*options.mutable_logit_bias())[1024] = 1;
  EXPECT_FALSE(CheckSampling(options, 5000, {}).ok());
}

TEST(SamplingTest, ForbiddenIdsWinOverTheClientsBias) {
  v1::SamplingOptions options;
  (*options.mutable_logit_bias())[7] = 100;
  (*options.mutable_logit_bias())[8] = 5;
  const auto sampling = CheckSampling(options, kVocab, {7, 9});
  ASSERT_TRUE(sampling.ok());
  EXPECT_THAT(sampling->bias_ids(), ElementsAre(8, 7, 9));
  EXPECT_THAT(sampling->bias_values(), ElementsAre(5, -kInfinity, -kInfinity));
}

TEST(TokenIdsTest, RangeAndEmptiness) {
  EXPECT_TRUE(CheckTokenIds({0, 99}, kVocab, "prompt").ok());
  EXPECT_EQ(DetailOf(CheckTokenIds({}, kVocab, "prompt")).param, "prompt");
  const absl::Status status = CheckTokenIds({5, 100}, kVocab, "prompt");
  EXPECT_EQ(DetailOf(status).param, "prompt[1]");
  EXPECT_THAT(std::string(status.message()), HasSubstr("100 is outside 0 to 99"));
  EXPECT_FALSE(CheckTokenIds({-1}, kVocab, "prompt").ok());
}

TEST(StopsTest, CountAndBytesAreBounded) {
  v1::GenerateRequest request;
  for (int index = 0; index < 16; ++index) request.add_stop("\xFF");
  EXPECT_EQ(CheckStops(request)->size(), 16u);
  request.add_stop("x");
  EXPECT_EQ(DetailOf(CheckStops(request).status()).param, "stop");
  v1::GenerateRequest empty;
  empty.add_stop("");
  EXPECT_EQ(DetailOf(CheckStops(empty).status()).param, "stop[0]");
  v1::GenerateRequest longest;
  longest.add_stop(std::string(1024, 'x'));
  EXPECT_TRUE(CheckStops(longest).ok());
  longest.add_stop(std::string(1025, 'x'));
  EXPECT_EQ(DetailOf(CheckStops(longest).status()).param, "stop[1]");
}

TEST(LengthTest, PromptAndAnswerFitIntoTheContext) {
  v1::GenerateRequest request;
  EXPECT_EQ(*CheckLength(request, 10, 64), 54) << "absent: the rest of the context";
  EXPECT_EQ(*CheckLength(request, 63, 64), 1);
  request.set_max_tokens(2147483647);
  EXPECT_EQ(*CheckLength(request, 10, 64), 54);
  request.set_max_tokens(3);
  EXPECT_EQ(*CheckLength(request, 10, 64), 3);
  for (const int prompt : {64, 65, 640}) {
    const absl::Status status = CheckLength(request, prompt, 64).status();
    EXPECT_EQ(DetailOf(status).code, "context_length_exceeded");
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(prompt) + " tokens"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("context length is 64"));
  }
  for (const int wrong : {0, -4}) {
    request.set_max_tokens(wrong);
    EXPECT_EQ(DetailOf(CheckLength(request, 10, 64).status()).param, "max_tokens");
  }
}

}  // namespace
}  // namespace warpline
