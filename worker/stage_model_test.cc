#include "worker/stage_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "worker/forwarding_backend_fakes.h"
#include "worker/golden_pipeline.h"

namespace warpline {
namespace {

constexpr double kExact = 1e-10;  // F32 models with f32 caches

std::vector<int32_t> ShuffledPages(int count, uint32_t seed) {
  std::vector<int32_t> pages(count);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(seed));
  return pages;
}

bool SameBits(absl::Span<const float> a, absl::Span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class GoldenModelTest : public ::testing::TestWithParam<std::string> {
 protected:
  GoldenModelTest() : golden_(ReadGoldenCase(GetParam())), pages_(ShuffledPages(32, 1)) {}

  int token_count() const { return static_cast<int>(golden_.tokens.size()); }
  double limit() const { return golden_.is_f32 ? kExact : golden_.tolerance_nmse; }

  std::vector<float> RunWhole(const PipelineOptions& options) {
    GoldenPipeline pipeline(golden_.model_path, options);
    return RunChunks(pipeline, {token_count()});
  }
  std::vector<float> RunChunks(GoldenPipeline& pipeline, const std::vector<int>& chunks) {
    absl::StatusOr<std::vector<float>> logits =
        pipeline.RunSequence(golden_.tokens, chunks, 1, pages_);
    EXPECT_TRUE(logits.ok()) << logits.status();
    return logits.ok() ? *std::move(logits) : std::vector<float>();
  }

  const GoldenCase golden_;
  const std::vector<int32_t> pages_;
};

TEST_P(GoldenModelTest, LogitsAreRight) {
  const std::vector<float> logits = RunWhole({});
  ASSERT_EQ(logits.size(), golden_.logits.size());
  EXPECT_LE(Nmse(logits, golden_.logits), limit());
}

TEST_P(GoldenModelTest, ChunksAndThreadsDoNotChangeABit) {
  const std::vector<float> expected = RunWhole({});
  GoldenPipeline pipeline(golden_.model_path, {.thread_count = 2});
  std::vector<std::vector<int>> chunkings = golden_.chunkings;
  for (const int length : {1, 7, 64, token_count()})
    chunkings.push_back(ChunksOf(token_count(), length));
  for (const std::vector<int>& chunks : chunkings) {
    EXPECT_TRUE(SameBits(RunChunks(pipeline, chunks), expected)) << "first chunk " << chunks[0];
  }
}

TEST_P(GoldenModelTest, SplitsDoNotChangeABit) {
  GoldenPipeline whole(golden_.model_path, {});
  const std::vector<float> expected = RunChunks(whole, {token_count()});
  const int n_layer = whole.spec().n_layer;
  std::vector<std::vector<int>> splits;
  for (int border = 1; border < n_layer; ++border) splits.push_back({border});
  if (n_layer >= 3) splits.push_back({1, n_layer - 1});
  for (const std::vector<int>& split : splits) {
    GoldenPipeline pipeline(golden_.model_path, {.split = split});
    EXPECT_TRUE(SameBits(RunChunks(pipeline, ChunksOf(token_count(), 7)), expected))
        << "split at " << split[0];
  }
}

// Two sequences side by side: one prompt read while the other decodes, then both in the same decode
// steps, their pages interleaved at random.
TEST_P(GoldenModelTest, NeighboursDoNotChangeABit) {
  std::vector<int32_t> other_tokens(golden_.tokens.rbegin(), golden_.tokens.rend());
  const int half = token_count() / 2;
  GoldenPipeline pipeline(golden_.model_path, {.split = {1}});
  const std::vector<std::vector<int32_t>> tokens = {golden_.tokens, other_tokens};
  std::vector<std::vector<float>> expected;
  for (const std::vector<int32_t>& sequence : tokens) {
    const auto logits = pipeline.RunSequence(sequence, {token_count()}, 0, pages_);
    ASSERT_TRUE(logits.ok()) << logits.status();
    expected.push_back(*logits);
  }
  for (size_t i = 0; i < pipeline.stage_count(); ++i)
    ASSERT_TRUE(pipeline.stage(i).ResetAllSlots().ok());
  std::vector<std::vector<float>> got(2);
  size_t next_page = 0;
  int positions[2] = {0, 0};
  const auto entry = [&](int sequence, int row_count) {
    StepEntry made{.kv_slot = sequence, .position = positions[sequence]};
    for (int row = 0; row < row_count; ++row) {
      if (positions[sequence] % kPageTokens == 0) made.new_pages.push_back(pages_[next_page++]);
      made.token_ids.push_back(tokens[sequence][positions[sequence]++]);
    }
    return made;
  };
  const auto run = [&](StepKind kind, std::vector<StepEntry> entries) {
    const Step step{.kind = kind, .entries = std::move(entries)};
    const absl::StatusOr<std::vector<float>> logits = pipeline.Run(step);
    ASSERT_TRUE(logits.ok()) << logits.status();
    auto from = logits->begin();
    for (const StepEntry& part : step.entries) {
      const auto count =
          static_cast<std::ptrdiff_t>(part.token_ids.size()) * pipeline.spec().n_vocab;
      got[part.kv_slot].insert(got[part.kv_slot].end(), from, from + count);
      from += count;
    }
  };
  ASSERT_NO_FATAL_FAILURE(run(StepKind::kPrompt, {entry(0, half)}));
  ASSERT_NO_FATAL_FAILURE(run(StepKind::kPrompt, {entry(1, 3)}));
  ASSERT_NO_FATAL_FAILURE(run(StepKind::kDecode, {entry(0, 1)}));
  ASSERT_NO_FATAL_FAILURE(run(StepKind::kPrompt, {entry(1, half - 2)}));
  for (int step = half + 1; step < token_count(); ++step) {
    const bool swap = step % 2 == 0;
    StepEntry first = entry(swap ? 1 : 0, 1);
    StepEntry second = entry(swap ? 0 : 1, 1);
    ASSERT_NO_FATAL_FAILURE(run(StepKind::kDecode, {std::move(first), std::move(second)}));
  }
  EXPECT_TRUE(SameBits(got[0], expected[0]));
  EXPECT_TRUE(SameBits(got[1], expected[1]));
}

TEST_P(GoldenModelTest, SmallerCachesStayWithinTheirTolerance) {
  EXPECT_LE(Nmse(RunWhole({.kv_type = KvType::kF16}), golden_.logits),
            golden_.tolerance_f16 + limit());
  const std::vector<float> q8 = RunWhole({.kv_type = KvType::kQ8_0});
  EXPECT_LE(Nmse(q8, golden_.logits), golden_.tolerance_kv_int8 + limit());
  GoldenPipeline pipeline(golden_.model_path, {.split = {1}, .kv_type = KvType::kQ8_0});
  EXPECT_TRUE(SameBits(RunChunks(pipeline, ChunksOf(token_count(), 5)), q8));
}

TEST_P(GoldenModelTest, StagesLoadTheirShareAlone) {
  GoldenPipeline whole(golden_.model_path, {});
  GoldenPipeline split(golden_.model_path, {.split = {1}});
  const ModelBytes bytes = BytesOf(whole.spec(), whole.file());
  // A tied embedding is needed at both ends.
  const int64_t twice = whole.spec().tied_embeddings ? bytes.embedding : 0;
  EXPECT_EQ(split.stage(0).weight_bytes() + split.stage(1).weight_bytes(),
            whole.stage(0).weight_bytes() + twice);
  EXPECT_EQ(split.stage(0).weight_bytes(), bytes.layers[0] + bytes.embedding);
  EXPECT_EQ(split.stage(0).cache_bytes() + split.stage(1).cache_bytes(),
            whole.stage(0).cache_bytes());
  EXPECT_TRUE(whole.stage(0).is_first() && whole.stage(0).is_last());
  EXPECT_TRUE(split.stage(0).is_first() && !split.stage(0).is_last());
  EXPECT_TRUE(!split.stage(1).is_first() && split.stage(1).is_last());
}

INSTANTIATE_TEST_SUITE_P(
    Families, GoldenModelTest, ::testing::ValuesIn(GoldenCaseNames()), [](const auto& info) {
      std::string name = info.param;
      std::replace_if(
          name.begin(), name.end(),
          [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
      return name;
    });

// One model of two stages, for what does not depend on the family.
class StageModelTest : public ::testing::Test {
 protected:
  static constexpr int kMaxRows = 32;

  StageModelTest()
      : golden_(ReadGoldenCase("families/llama-plain")),
        pipeline_(golden_.model_path, {.split = {1}, .page_count = 4, .max_rows = kMaxRows}) {}

  Step StepOf(int kv_slot, int64_t position, int row_count, std::vector<int32_t> new_pages) const {
    return {.entries = {{.kv_slot = kv_slot,
                         .position = position,
                         .token_ids = {golden_.tokens.begin() + position,
                                       golden_.tokens.begin() + position + row_count},
                         .new_pages = std::move(new_pages)}}};
  }
  void ExpectRefused(const Step& step) {
    const absl::Status status = pipeline_.Run(step).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }

  const GoldenCase golden_;
  GoldenPipeline pipeline_;
};

TEST_F(StageModelTest, RefusesBadStepsAndGoesOn) {
  ASSERT_TRUE(pipeline_.Run(StepOf(0, 0, 8, {2})).ok());
  ExpectRefused(StepOf(2, 0, 1, {1}));
  ExpectRefused(StepOf(0, 9, 1, {}));
  ExpectRefused(StepOf(1, 0, 1, {4}));
  ExpectRefused(StepOf(1, 0, 1, {}));
  ExpectRefused({});
  Step step = StepOf(1, 0, 1, {1});
  step.entries[0].token_ids[0] = pipeline_.spec().n_vocab;
  ExpectRefused(step);
  step.entries[0].token_ids.assign(kMaxRows + 1, 1);
  ExpectRefused(step);
  const absl::StatusOr<std::vector<float>> rest = pipeline_.Run(StepOf(0, 8, 16, {}));
  ASSERT_TRUE(rest.ok()) << rest.status();
  const size_t skipped = golden_.logits.size() / golden_.tokens.size() * 8;
  EXPECT_LE(Nmse(*rest, absl::MakeConstSpan(golden_.logits).subspan(skipped)), kExact);
}

TEST_F(StageModelTest, RefusesActivationsOfAnotherSize) {
  const Step step = StepOf(0, 0, 2, {0});
  const size_t count = 2 * static_cast<size_t>(pipeline_.spec().n_embd);
  std::vector<float> rows(count);
  std::vector<float> more(count + 1);
  StageModel& first = pipeline_.stage(0);
  StageModel& last = pipeline_.stage(1);
  const auto is_refused = [](const absl::Status& status) {
    return status.code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(is_refused(first.Forward(step, rows, absl::MakeSpan(rows))));
  EXPECT_TRUE(is_refused(first.Forward(step, {}, {})));
  EXPECT_TRUE(is_refused(first.Forward(step, {}, absl::MakeSpan(more))));
  EXPECT_TRUE(is_refused(last.Forward(step, {}, {})));
  EXPECT_TRUE(is_refused(last.Forward(step, more, {})));
  EXPECT_TRUE(is_refused(last.Forward(step, rows, absl::MakeSpan(rows))));
  EXPECT_TRUE(first.Forward(step, {}, absl::MakeSpan(rows)).ok());
  EXPECT_TRUE(last.Forward(step, rows, {}).ok());
}

TEST_F(StageModelTest, RefusesLogitsThatAreNotThere) {
  const int n_vocab = pipeline_.spec().n_vocab;
  std::vector<float> out(n_vocab);
  StageModel& last = pipeline_.stage(1);
  const auto is_refused = [](const absl::Status& status) {
    return status.code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(is_refused(last.Logits({0}, absl::MakeSpan(out))));  // no step yet
  ASSERT_TRUE(pipeline_.Run(StepOf(0, 0, 3, {0})).ok());
  EXPECT_TRUE(last.Logits({2}, absl::MakeSpan(out)).ok());
  EXPECT_TRUE(is_refused(last.Logits({3}, absl::MakeSpan(out))));
  EXPECT_TRUE(is_refused(last.Logits({-1}, absl::MakeSpan(out))));
  EXPECT_TRUE(is_refused(last.Logits({0, 1}, absl::MakeSpan(out))));
  EXPECT_TRUE(is_refused(pipeline_.stage(0).Logits({0}, absl::MakeSpan(out))));
  const std::vector<int32_t> too_many(33, 0);
  std::vector<float> wide(33 * static_cast<size_t>(n_vocab));
  EXPECT_TRUE(is_refused(last.Logits(too_many, absl::MakeSpan(wide))));
  EXPECT_TRUE(last.Logits({}, {}).ok());
}

TEST_F(StageModelTest, RowsMayBeChosenInAnyOrder) {
  const absl::StatusOr<std::vector<float>> all = pipeline_.Run(StepOf(0, 0, 5, {0}));
  ASSERT_TRUE(all.ok());
  const size_t n_vocab = pipeline_.spec().n_vocab;
  std::vector<float> chosen(3 * n_vocab);
  ASSERT_TRUE(pipeline_.stage(1).Logits({4, 0, 4}, absl::MakeSpan(chosen)).ok());
  const absl::Span<const float> got(chosen);
  const absl::Span<const float> expected(*all);
  EXPECT_TRUE(SameBits(got.subspan(0, n_vocab), expected.subspan(4 * n_vocab, n_vocab)));
  EXPECT_TRUE(SameBits(got.subspan(n_vocab, n_vocab), expected.subspan(0, n_vocab)));
  EXPECT_TRUE(SameBits(got.subspan(2 * n_vocab), expected.subspan(4 * n_vocab, n_vocab)));
}

TEST_F(StageModelTest, CandidatesAreTheLargestLogits) {
  const absl::StatusOr<std::vector<float>> all = pipeline_.Run(StepOf(0, 0, 5, {0}));
  ASSERT_TRUE(all.ok());
  const size_t n_vocab = pipeline_.spec().n_vocab;
  StageModel& last = pipeline_.stage(1);
  std::vector<float> edited(n_vocab);
  std::vector<RowCandidates> found(2);
  EXPECT_FALSE(last.EditedLogits(0, absl::MakeSpan(edited)).ok());  // nothing was asked yet
  const std::vector<LogitEdit> edits = {{.token_id = 3, .bias = 1000}};
  const std::vector<CandidateQuery> queries = {{.edits = edits}, {}};
  ASSERT_TRUE(last.Candidates({4, 1}, queries, absl::MakeSpan(found)).ok());
  EXPECT_EQ(found[0].candidates.at(0).token_id, 3);
  const auto row = all->begin() + static_cast<std::ptrdiff_t>(n_vocab);
  const auto best = std::max_element(row, row + static_cast<std::ptrdiff_t>(n_vocab));
  EXPECT_EQ(found[1].candidates.at(0).token_id, best - row);
  EXPECT_EQ(found[1].candidates.at(0).logit, *best);
  ASSERT_TRUE(last.EditedLogits(0, absl::MakeSpan(edited)).ok());
  EXPECT_EQ(edited[3], (*all)[4 * n_vocab + 3] + 1000);
  EXPECT_EQ(edited[4], (*all)[4 * n_vocab + 4]);
  EXPECT_FALSE(last.EditedLogits(2, absl::MakeSpan(edited)).ok());
  EXPECT_FALSE(last.EditedLogits(-1, absl::MakeSpan(edited)).ok());
  EXPECT_FALSE(last.Candidates({4, 1}, {}, absl::MakeSpan(found)).ok());
  EXPECT_FALSE(last.Candidates({5, 1}, queries, absl::MakeSpan(found)).ok());
  EXPECT_FALSE(pipeline_.stage(0).Candidates({4, 1}, queries, absl::MakeSpan(found)).ok());
  EXPECT_FALSE(last.EditedLogits(0, absl::MakeSpan(edited)).ok());  // the last call failed
}

// What a broken neighbour sends spoils its own sequence only, and nothing of it is left when its
// pages are used again.
TEST_F(StageModelTest, NonFiniteRowsStayInTheirSequence) {
  const absl::StatusOr<std::vector<float>> expected = pipeline_.Run(StepOf(0, 0, 6, {0}));
  ASSERT_TRUE(expected.ok());
  ASSERT_TRUE(pipeline_.stage(0).ResetAllSlots().ok());
  ASSERT_TRUE(pipeline_.stage(1).ResetAllSlots().ok());
  Step both = StepOf(0, 0, 6, {0});
  both.entries.push_back(StepOf(1, 0, 10, {3}).entries[0]);
  const size_t n_embd = pipeline_.spec().n_embd;
  const size_t n_vocab = pipeline_.spec().n_vocab;
  std::vector<float> rows(16 * n_embd);
  ASSERT_TRUE(pipeline_.stage(0).Forward(both, {}, absl::MakeSpan(rows)).ok());
  std::fill(rows.begin() + 6 * static_cast<std::ptrdiff_t>(n_embd), rows.end(),
            std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(pipeline_.stage(1).Forward(both, rows, {}).ok());
  std::vector<float> logits(6 * n_vocab);
  ASSERT_TRUE(pipeline_.stage(1).Logits({0, 1, 2, 3, 4, 5}, absl::MakeSpan(logits)).ok());
  EXPECT_TRUE(SameBits(logits, *expected));
  std::vector<float> spoilt(n_vocab);
  ASSERT_TRUE(pipeline_.stage(1).Logits({15}, absl::MakeSpan(spoilt)).ok());
  EXPECT_TRUE(std::isnan(spoilt[0]));
  ASSERT_TRUE(pipeline_.stage(0).ResetSlot(1).ok());
  ASSERT_TRUE(pipeline_.stage(1).ResetSlot(1).ok());
  const absl::StatusOr<std::vector<float>> again = pipeline_.Run(StepOf(1, 0, 6, {3}));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(SameBits(*again, *expected));
}

// The same for what slots keep beside pages: memory, columns, indexer keys, the last token ids.
TEST(HybridStageModelTest, ResetLeavesNothingOfABrokenSequence) {
  const GoldenCase golden = ReadGoldenCase("families/qwen4exp-long");
  GoldenPipeline pipeline(golden.model_path, {.split = {1}});
  const int count = 300;
  const absl::Span<const int32_t> tokens = absl::MakeConstSpan(golden.tokens).first(count);
  const std::vector<int32_t> pages = ShuffledPages(32, 2);
  const auto expected = pipeline.RunSequence(tokens, {count}, 1, pages);
  ASSERT_TRUE(expected.ok()) << expected.status();
  StageModel& last = pipeline.stage(1);
  ASSERT_TRUE(last.ResetSlot(1).ok());
  const Step broken{
      .entries = {{.kv_slot = 1,
                   .token_ids = {golden.tokens.begin() + 50, golden.tokens.begin() + 61},
                   .new_pages = {pages[0]}}}};
  const std::vector<float> rows(11 * static_cast<size_t>(pipeline.spec().residual_width),
                                std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(last.Forward(broken, rows, {}).ok());
  std::vector<float> spoilt(static_cast<size_t>(pipeline.spec().n_vocab));
  ASSERT_TRUE(last.Logits({10}, absl::MakeSpan(spoilt)).ok());
  EXPECT_TRUE(std::isnan(spoilt[0]));
  const auto again = pipeline.RunSequence(tokens, {100, 200}, 1, pages);  // resets the slot
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(SameBits(*again, *expected));
}

TEST(HybridStageModelTest, TheTablesLayerNeedsAReader) {
  const GoldenCase golden = ReadGoldenCase("families/qwen4exp-ple");
  const auto file = GgufFile::Open(golden.model_path);
  ASSERT_TRUE(file.ok());
  const auto spec = ModelSpec::FromGguf(**file);
  ASSERT_TRUE(spec.ok());
  const auto backend = CreateCpuBackend({.thread_count = 1});
  ASSERT_TRUE(backend.ok());
  const auto load = [&](LayerRange layers) {
    const StageModelOptions options{.layers = layers, .page_count = 1, .max_context = 64};
    return StageModel::Load(**file, *spec, options, **backend, nullptr).status();
  };
  EXPECT_EQ(load({0, 3}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(load({1, 2}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(load({0, 1}).ok());
  EXPECT_TRUE(load({2, 3}).ok());
}

TEST_F(StageModelTest, RefusesOptionsOutOfRange) {
  const absl::StatusOr<std::unique_ptr<Backend>> backend = CreateCpuBackend({.thread_count = 1});
  ASSERT_TRUE(backend.ok());
  const int n_layer = pipeline_.spec().n_layer;
  const StageModelOptions good{
      .layers = {.begin = 0, .end = n_layer}, .page_count = 1, .max_context = 64};
  const auto code_with = [&](void (*change)(StageModelOptions&)) {
    StageModelOptions options = good;
    change(options);
    return StageModel::Load(pipeline_.file(), pipeline_.spec(), options, **backend, nullptr)
        .status()
        .code();
  };
  EXPECT_EQ(code_with([](StageModelOptions& o) { o.layers.begin = -1; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_with([](StageModelOptions& o) { ++o.layers.end; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_with([](StageModelOptions& o) { o.layers.end = 0; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_with([](StageModelOptions& o) { o.slot_count = 0; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_with([](StageModelOptions& o) { o.page_count = 0; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_with([](StageModelOptions& o) { o.max_context = 0; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_with([](StageModelOptions& o) { o.max_rows = 0; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_with([](StageModelOptions& o) { o.max_logit_rows = 0; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_with([](StageModelOptions&) {}), absl::StatusCode::kOk);
}

TEST_F(StageModelTest, ProgressRisesToOne) {
  const absl::StatusOr<std::unique_ptr<Backend>> backend = CreateCpuBackend({.thread_count = 1});
  ASSERT_TRUE(backend.ok());
  std::vector<double> progress;
  const StageModelOptions options{
      .layers = {.begin = 0, .end = pipeline_.spec().n_layer}, .page_count = 1, .max_context = 64};
  ASSERT_TRUE(
      StageModel::Load(pipeline_.file(), pipeline_.spec(), options, **backend, [&](double share) {
        progress.push_back(share);
      }).ok());
  ASSERT_GT(progress.size(), 10u);
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
  EXPECT_LT(progress[0], 0.5);
  // The bytes of all tensors add up before the end is announced.
  EXPECT_EQ(progress[progress.size() - 2], 1);
  EXPECT_EQ(progress.back(), 1);
}

// The CPU back end as a device with memory of its own, which writes down the steps it is given.
class FakeDevice final : public ForwardingBackend {
 public:
  FakeDevice(std::unique_ptr<Backend> inner, int64_t free_bytes, std::vector<std::string>& steps)
      : ForwardingBackend(std::move(inner)), free_bytes_(free_bytes), steps_(steps) {}

  absl::StatusOr<std::optional<DeviceMemory>> Memory() const override {
    return DeviceMemory{.total = int64_t{1} << 30, .free = free_bytes_};
  }
  absl::Status BeginStep(const StepArgs& args) override {
    steps_.push_back(absl::StrCat(args.kind == StepKind::kDecode ? "decode" : "prompt", " of ",
                                  args.token_ids.size(), " rows, ", args.sequences.size(),
                                  " sequences"));
    return ForwardingBackend::BeginStep(args);
  }

 private:
  const int64_t free_bytes_;
  std::vector<std::string>& steps_;
};

PipelineOptions OnFakeDevice(std::vector<std::string>& steps) {
  return {.slot_count = 5,
          .page_count = 4,
          .max_rows = 100,
          .wrap_backend = [&steps](std::unique_ptr<Backend> inner) {
            return std::make_unique<FakeDevice>(std::move(inner), int64_t{1} << 30, steps);
          }};
}

// What a device allocates in its first steps must be there before the first request.
TEST(DryStepsTest, ADeviceRunsTheLargestShapesBeforeItServes) {
  const GoldenCase golden = ReadGoldenCase("families/llama-plain");
  std::vector<std::string> steps;
  const GoldenPipeline pipeline(golden.model_path, OnFakeDevice(steps));
  EXPECT_THAT(steps, testing::ElementsAre(
                         "prompt of 100 rows, 1 sequences", "decode of 5 rows, 5 sequences",
                         "decode of 5 rows, 5 sequences", "decode of 5 rows, 5 sequences",
                         "decode of 2 rows, 2 sequences", "decode of 2 rows, 2 sequences",
                         "decode of 1 rows, 1 sequences", "decode of 1 rows, 1 sequences"));
}

TEST(DryStepsTest, LeaveNothingBehind) {
  const GoldenCase golden = ReadGoldenCase("families/llama-plain");
  const std::vector<int> chunks = ChunksOf(static_cast<int>(golden.tokens.size()), 64);
  const std::vector<int32_t> pages = ShuffledPages(4, 1);
  std::vector<std::string> steps;
  PipelineOptions options = OnFakeDevice(steps);
  options.split = {1};
  GoldenPipeline on_device(golden.model_path, options);
  options.wrap_backend = nullptr;
  GoldenPipeline plain(golden.model_path, options);
  const auto got = on_device.RunSequence(golden.tokens, chunks, 0, pages);
  const auto expected = plain.RunSequence(golden.tokens, chunks, 0, pages);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_TRUE(SameBits(*got, *expected));
}

TEST(DeviceMemoryTest, IsShownBesideThePlan) {
  const GoldenCase golden = ReadGoldenCase("families/llama-plain");
  std::vector<std::string> steps;
  GoldenPipeline pipeline(golden.model_path, OnFakeDevice(steps));
  EXPECT_THAT(pipeline.stage(0).DeviceMemoryLine(),
              testing::MatchesRegex(" device_taken_mib=0 planned_mib=[0-9]+ device_used_mib=0 "
                                    "device_free_mib=1024"));
  GoldenPipeline plain(golden.model_path, {});
  EXPECT_EQ(plain.stage(0).DeviceMemoryLine(), "");
}

TEST(DeviceMemoryTest, RefusesWithTheNumbersWhatDoesNotFit) {
  const GoldenCase golden = ReadGoldenCase("families/llama-plain");
  const auto file = GgufFile::Open(golden.model_path);
  ASSERT_TRUE(file.ok());
  const auto spec = ModelSpec::FromGguf(**file);
  ASSERT_TRUE(spec.ok());
  auto cpu = CreateCpuBackend({.thread_count = 1});
  ASSERT_TRUE(cpu.ok());
  std::vector<std::string> steps;
  FakeDevice device(*std::move(cpu), 3 << 20, steps);
  const auto stage = StageModel::Load(
      **file, *spec, {.layers = {0, spec->n_layer}, .page_count = 100'000, .max_context = 640},
      device, nullptr);
  EXPECT_EQ(stage.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(stage.status().message()),
              testing::MatchesRegex("the device has 3 MiB free of 1024, this stage needs about "
                                    "[0-9]+ MiB: weights [0-9]+, caches [0-9]+, steps [0-9]+; a "
                                    "smaller -c, --parallel or --chunk, .*"));
  EXPECT_TRUE(steps.empty());
}

}  // namespace
}  // namespace warpline
