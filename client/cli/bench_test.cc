// Figures, prompts, options of arms, tables and pictures of `warpline bench`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/bench_arm.h"
#include "client/cli/bench_figures.h"
#include "client/cli/bench_plot.h"
#include "client/cli/bench_report.h"
#include "client/cli/bench_tokens.h"

namespace warpline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A stream that begins at `begin_ms` and has one token at each of `arrivals_ms`.
TokenStream StreamAt(int begin_ms, const std::vector<int>& arrivals_ms) {
  TokenStream stream{.begin = SteadyTime(std::chrono::milliseconds(begin_ms))};
  for (const int at : arrivals_ms) {
    stream.arrivals.push_back({.time = SteadyTime(std::chrono::milliseconds(at)), .count = 1});
  }
  return stream;
}

TEST(BenchFiguresTest, PromptsEndWithTheLastFirstToken) {
  const std::vector<TokenStream> one = {StreamAt(1000, {3000})};
  const auto speed = PromptSpeed(one, 500);
  ASSERT_TRUE(speed.ok());
  EXPECT_DOUBLE_EQ(speed->seconds, 2);
  EXPECT_DOUBLE_EQ(speed->tokens_per_second(), 250);
  EXPECT_EQ(speed->Name(), "prompt 500");
  const std::vector<TokenStream> two = {StreamAt(1000, {3000}), StreamAt(1100, {5000, 6000})};
  const auto both = PromptSpeed(two, 500);
  ASSERT_TRUE(both.ok());
  EXPECT_DOUBLE_EQ(both->seconds, 4);
  EXPECT_EQ(both->token_count, 1000);
  EXPECT_EQ(both->received_count, 3);
  EXPECT_EQ(both->Name(), "prompt 500 x2");
}

TEST(BenchFiguresTest, DecodingCountsWhileAllStreamsGenerate) {
  const std::vector<TokenStream> one = {StreamAt(0, {1000, 1500, 2000})};
  const auto alone = DecodeSpeed(one, 8);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->token_count, 2);
  EXPECT_DOUBLE_EQ(alone->tokens_per_second(), 2);
  // All generate from 1200 to 1600: two tokens of the first stream, three of the second.
  const std::vector<TokenStream> two = {StreamAt(0, {1000, 1100, 1300, 1600}),
                                        StreamAt(0, {1200, 1300, 1400, 1500, 1700, 1900})};
  const auto both = DecodeSpeed(two, 8);
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(both->token_count, 5);
  EXPECT_DOUBLE_EQ(both->seconds, 0.4);
  EXPECT_EQ(both->received_count, 10);
  EXPECT_EQ(both->Name(), "decode x2");
}

TEST(BenchFiguresTest, ThereMustBeSomethingToCount) {
  const std::vector<TokenStream> apart = {StreamAt(0, {1000, 1100}), StreamAt(0, {1200, 1300})};
  EXPECT_THAT(std::string(DecodeSpeed(apart, 8).status().message()),
              HasSubstr("ask for more --decode-tokens"));
  const std::vector<TokenStream> single = {StreamAt(0, {1000})};
  EXPECT_FALSE(DecodeSpeed(single, 8).ok());
  const std::vector<TokenStream> none = {StreamAt(0, {})};
  EXPECT_FALSE(PromptSpeed(none, 8).ok());
  EXPECT_FALSE(DecodeSpeed(none, 8).ok());
}

TEST(BenchFiguresTest, SummarizesOddAndEvenNumbersOfRuns) {
  const Summary odd = Summarize({5, 1, 3});
  EXPECT_DOUBLE_EQ(odd.median, 3);
  EXPECT_DOUBLE_EQ(odd.least, 1);
  EXPECT_DOUBLE_EQ(odd.most, 5);
  EXPECT_DOUBLE_EQ(Summarize({4, 1, 2, 9}).median, 3);
  EXPECT_DOUBLE_EQ(Summarize({7}).median, 7);
}

TEST(BenchTokensTest, OrdinaryTokensAreNoSpecialOnes) {
  const auto file = GgufFile::Open(WARPLINE_TEST_DATA "/tokenizers/smollm.gguf");
  ASSERT_TRUE(file.ok());
  const auto ids = OrdinaryTokens(**file);
  ASSERT_TRUE(ids.ok()) << ids.status();
  const auto types = (*file)->GetInts("tokenizer.ggml.token_type");
  ASSERT_TRUE(types.ok());
  EXPECT_GT(ids->size(), 100U);
  EXPECT_LT(ids->size(), types->size());
  for (const int32_t id : *ids) EXPECT_EQ((*types)[id], 1) << id;
  const auto bare = GgufFile::Open(WARPLINE_TEST_DATA "/families/llama-plain.gguf");
  ASSERT_TRUE(bare.ok());
  const auto none = OrdinaryTokens(**bare);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->empty());
}

TEST(BenchTokensTest, EveryPromptIsItsOwn) {
  const std::vector<int32_t> ids = {3, 5, 8, 13};
  std::set<std::vector<int32_t>> prompts;
  for (const PromptKey key : {PromptKey{.seed = 1},
                              {.seed = 2},
                              {.seed = uint64_t{1} << 32},
                              {.seed = 1, .run = 1},
                              {.seed = 1, .request = 1}}) {
    const std::vector<int32_t> prompt = RandomPrompt(ids, 20, 64, key);
    EXPECT_EQ(prompt, RandomPrompt(ids, 20, 64, key));
    EXPECT_EQ(std::set<int32_t>(prompt.begin(), prompt.end()),
              std::set<int32_t>(ids.begin(), ids.end()));
    EXPECT_TRUE(prompts.insert(prompt).second);
  }
  const std::vector<int32_t> any = RandomPrompt({}, 20, 1000, {.seed = 1});
  EXPECT_EQ(*std::min_element(any.begin(), any.end()), 0);
  EXPECT_EQ(*std::max_element(any.begin(), any.end()), 19);
}

TEST(BenchTokensTest, BodiesAskForExactlyTheTokens) {
  const std::vector<int32_t> prompt = {4, 2};
  const boost::json::object body = boost::json::parse(CompletionBody(prompt, 7)).as_object();
  EXPECT_EQ(body.at("prompt"), boost::json::parse("[4,2]"));
  EXPECT_EQ(body.at("max_tokens"), 7);
  for (const char* key : {"stream", "return_token_ids", "ignore_eos"})
    EXPECT_EQ(body.at(key), true);
  EXPECT_EQ(body.at("cache_prompt"), false);
}

TEST(BenchPlanTest, KnowsWhatItTakes) {
  BenchPlan plan{.prompts = {100, 5000}, .concurrent_prompts = {1, 4}, .batches = {2}};
  EXPECT_EQ(plan.longest_sequence(), 5001);
  EXPECT_EQ(plan.wanted_context(), 5001);
  EXPECT_EQ(plan.most_streams(), 4);
  plan.decode_tokens = 6000;
  EXPECT_EQ(plan.longest_sequence(), 6128);
  plan.prompts.clear();
  EXPECT_EQ(plan.most_streams(), 2);
  plan.batches.clear();
  EXPECT_EQ(plan.longest_sequence(), 72);  // The warm-up.
  EXPECT_EQ(plan.wanted_context(), 72);
}

TEST(BenchArmTest, ReplacesTheOptionsOfAllArms) {
  const BenchPlan plan{.prompts = {100}, .batches = {1, 9}};
  ArmBase base{.service = {.model = "m.gguf", .chunk = 128}};
  const auto arm = ArmOptions(base, "--chunk 64 -t 3 -np 12 --layer-split \"2,3\"", plan);
  ASSERT_TRUE(arm.ok()) << arm.status();
  EXPECT_EQ(arm->chunk, 64);
  EXPECT_EQ(arm->threads, 3);
  EXPECT_EQ(arm->parallel, 12);
  EXPECT_EQ(arm->layer_split, "2,3");
  EXPECT_EQ(arm->model, "m.gguf");
  EXPECT_EQ(arm->ctx_size, 128 + 16 * 128);
  base.model_context = 300;
  EXPECT_EQ(ArmOptions(base, "", plan)->ctx_size, 300);
  EXPECT_EQ(ArmOptions(base, "-c 280", plan)->ctx_size, 280);
  const auto empty = ArmOptions(base, "", plan);
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(empty->chunk, 128);
  EXPECT_EQ(empty->parallel, 9);
}

TEST(BenchArmTest, RefusesWhatCannotBeMeasured) {
  const BenchPlan plan{.prompts = {1000}, .batches = {4}};
  const ArmBase base{.service = {.model = "m.gguf"}, .model_context = 4096};
  for (const auto& [text, message] :
       {std::pair("--no-such-option", "--no-such-option"),
        {"--chunk -1", "no whole number"},
        {"-m other.gguf", "the same --model"},
        {"-c 1000", "--ctx-size is 1000, but the longest sequence has 1001 tokens"},
        {"-np 3", "--parallel is 3, but 4 sequences"}}) {
    const auto arm = ArmOptions(base, text, plan);
    ASSERT_FALSE(arm.ok()) << text;
    EXPECT_THAT(std::string(arm.status().message()), HasSubstr(message));
  }
  const BenchPlan long_plan{.prompts = {4096}};
  EXPECT_THAT(std::string(ArmOptions(base, "", long_plan).status().message()),
              HasSubstr("the model's context has 4096 tokens, the longest sequence 4097"));
}

TEST(ServiceFactsTest, ReadsTheStatus) {
  const auto facts = ReadServiceFacts(
      R"({"version":"1","context_length":64,"slots":3,"model":{"name":"n","vocab_size":9},)"
      R"("stages":[{"device":"cpu a"},{"device":"cpu b"}]})");
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->vocab_size, 9);
  EXPECT_EQ(facts->slot_count, 3);
  EXPECT_THAT(facts->devices, ElementsAre("cpu a", "cpu b"));
  for (const char* other : {"", "[]", "{}", R"({"context_length":64})"}) {
    EXPECT_FALSE(ReadServiceFacts(other).ok()) << other;
  }
}

// Two arms in turns: A reads 100 and 300 tokens a second, B 400 each time.
BenchReport TwoArms() {
  BenchReport report;
  report.plan = {.prompts = {1000}, .batches = {}, .seed = 5};
  report.arms = {{.options = "--chunk 1 <&>"}, {.options = ""}};
  for (const auto& [arm, repeat, seconds] :
       {std::tuple(0, 0, 10.0), {1, 0, 2.5}, {0, 1, 10 / 3.0}, {1, 1, 2.5}}) {
    BenchRun run{.arm = arm, .repeat = repeat, .ready_seconds = 1.0 + arm};
    run.measurements.push_back({.size = 1000, .token_count = 1000, .seconds = seconds});
    report.runs.push_back(std::move(run));
  }
  return report;
}

TEST(BenchReportTest, ComparesMedians) {
  const std::vector<BenchRow> rows = SummarizeRuns(TwoArms());
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_DOUBLE_EQ(rows[0].arms[0].median, 200);
  EXPECT_DOUBLE_EQ(rows[0].arms[0].most, 300);
  EXPECT_DOUBLE_EQ(rows[0].arms[1].median, 400);
  const std::vector<std::string> lines = absl::StrSplit(ReportTable(TwoArms()), '\n');
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[0], "A: --chunk 1 <&>");
  EXPECT_EQ(lines[1], "B: no more options");
  EXPECT_THAT(lines[3], testing::ContainsRegex("^prompt 1000 +200 \\(100 - 300\\) +400 \\(400 - "
                                               "400\\) +2.000$"));
  EXPECT_THAT(lines[4], testing::ContainsRegex("^start to ready, s +1.00 .* 2.00 "));
}

TEST(BenchReportTest, AnArmWithoutFiguresIsNotCompared) {
  BenchReport report = TwoArms();
  report.runs.resize(1);
  EXPECT_TRUE(SummarizeRuns(report).empty());
}

TEST(BenchReportTest, JsonHasEveryRun) {
  BenchReport report = TwoArms();
  report.error = "run 5: \"x\"";
  const boost::json::object json = boost::json::parse(ReportJson(report)).as_object();
  EXPECT_EQ(json.at("runs").as_array().size(), 4U);
  EXPECT_EQ(json.at("seed"), 5);
  EXPECT_EQ(json.at("error"), "run 5: \"x\"");
  EXPECT_DOUBLE_EQ(json.at("summary").at(0).at("B/A").as_double(), 2);
  EXPECT_DOUBLE_EQ(json.at("summary").at(0).at("A").at("median").as_double(), 200);
  EXPECT_EQ(json.at("runs").at(1).at("arm"), "B");
}

TEST(BenchPlotTest, DrawsAndEscapes) {
  const std::string svg = ReportSvg(TwoArms());
  EXPECT_TRUE(absl::StartsWith(svg, "<svg "));
  EXPECT_TRUE(absl::EndsWith(svg, "</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("A: --chunk 1 &lt;&amp;&gt;"));
  EXPECT_THAT(svg, HasSubstr("prompt length, tokens"));
  EXPECT_THAT(svg, HasSubstr("prompt tokens/s"));
  const auto count = [&svg](const std::string& text) {
    return std::vector<std::string>(absl::StrSplit(svg, text)).size() - 1;
  };
  EXPECT_EQ(count("<polyline"), 2U);
  EXPECT_EQ(count("<circle"), 2U);
  EXPECT_EQ(count("<g "), count("</g>"));
  EXPECT_EQ(count("<text "), count("</text>"));
}

TEST(BenchPlotTest, PlacesPointsByTheirValues) {
  const PlotPanel panel{.curves = {{.name = "c",
                                    .points = {{.x = 0, .y = 50, .least = 50, .most = 50},
                                               {.x = 100, .y = 100, .least = 0, .most = 100}}}}};
  const std::string svg = PlotSvg({&panel, 1});
  // 606 pixels for 103 units across, 288 for 105 upwards from y = 340.
  EXPECT_THAT(svg, HasSubstr("points=\"90.0,202.9 678.3,65.7 \""));
  EXPECT_THAT(svg, HasSubstr("x1=\"678.3\" y1=\"340.0\" x2=\"678.3\" y2=\"65.7\""));
}

TEST(BenchPlotTest, TicksAreRound) {
  EXPECT_DOUBLE_EQ(TickStep(105, 6), 20);
  EXPECT_DOUBLE_EQ(TickStep(100, 5), 20);
  EXPECT_DOUBLE_EQ(TickStep(107120, 8), 20000);
  EXPECT_DOUBLE_EQ(TickStep(1.03, 8), 0.2);
  EXPECT_DOUBLE_EQ(TickStep(9, 6), 2);
}

}  // namespace
}  // namespace warpline
