// The CPU back end against plain loops, and against itself: a row's bits may depend on nothing but
// the row.
#include "kernels/backend.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/moe.h"
#include "kernels/cpu/op_cases.h"

namespace warpline {
namespace {

using ::testing::ElementsAre;

std::unique_ptr<Backend> MakeBackend(int threads, const std::string& set = "") {
  auto backend = CreateCpuBackend({.thread_count = threads, .instruction_set = set});
  EXPECT_TRUE(backend.ok()) << backend.status();
  return std::move(backend).value();
}

bool HasAvx512() { return CreateCpuBackend({.thread_count = 1, .instruction_set = "avx512"}).ok(); }

// Squared error over squared values; infinite when something is not finite.
double ErrorOf(const std::vector<float>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return difference == 0 ? 0 : difference / size;
}

// Runs all rows, `chunk` at a time.
std::vector<float> RunChunks(OpFixture& fixture, int64_t rows, int64_t chunk) {
  for (int64_t first = 0; first < rows; first += chunk) {
    const absl::Status status = fixture.Run(first, std::min(chunk, rows - first));
    EXPECT_TRUE(status.ok()) << status;
  }
  return fixture.Read();
}

std::vector<float> RunCase(Backend& backend, const OpCase& op_case, int64_t chunk,
                           int64_t poisoned_row = -1) {
  auto fixture = MakeFixture(backend, op_case, poisoned_row);
  EXPECT_TRUE(fixture.ok()) << fixture.status();
  if (!fixture.ok()) return {};
  return RunChunks(**fixture, op_case.rows, chunk);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

class BackendSetTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "avx512" && !HasAvx512()) GTEST_SKIP() << "no AVX-512 here";
  }
};

TEST_P(BackendSetTest, AgreesWithPlainLoops) {
  const std::unique_ptr<Backend> backend = MakeBackend(2, GetParam());
  for (const OpCase& op_case : TestCases()) {
    auto fixture = MakeFixture(*backend, op_case);
    ASSERT_TRUE(fixture.ok()) << CaseName(op_case) << ": " << fixture.status();
    const absl::Status status = (*fixture)->Run(0, op_case.rows);
    ASSERT_TRUE(status.ok()) << CaseName(op_case) << ": " << status;
    EXPECT_LE(ErrorOf((*fixture)->Read(), (*fixture)->Expected()), op_case.bound)
        << CaseName(op_case);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, BackendSetTest, testing::Values("avx2", "avx512"));

TEST(BackendTest, BitsDoNotDependOnInstructionSet) {
  if (!HasAvx512()) GTEST_SKIP() << "no AVX-512 here";
  const std::unique_ptr<Backend> narrow = MakeBackend(2, "avx2"), wide = MakeBackend(2, "avx512");
  for (const OpCase& op_case : TestCases()) {
    const int64_t rows = std::max<int64_t>(1, op_case.rows);
    EXPECT_TRUE(SameBits(RunCase(*narrow, op_case, rows), RunCase(*wide, op_case, rows)))
        << CaseName(op_case);
  }
}

#ifdef WARPLINE_SANITIZED
constexpr int64_t kBatchRows = 100;  // sanitizers are slow
#else
constexpr int64_t kBatchRows = 300;
#endif

// Cases with many rows, for comparing batches of different sizes.
std::vector<OpCase> BatchCases() {
  std::vector<OpCase> cases;
  for (const QuantType type :
       {QuantType::kF32, QuantType::kQ4_1, QuantType::kQ8_0, QuantType::kQ6K}) {
    cases.push_back(
        {.type = type, .rows = kBatchRows, .k = 256, .n = 110, .bias = true, .scale = true});
    cases.push_back(
        {.op = CaseOp::kDenseFfn, .type = type, .rows = kBatchRows, .k = 256, .n = 512});
    cases.push_back({.op = CaseOp::kMoe,
                     .type = type,
                     .rows = kBatchRows,
                     .k = 256,
                     .n = 256,
                     .renormalise = true,
                     .shared = true,
                     .experts = 8,
                     .used = 3});
  }
  cases.push_back({.type = QuantType::kF32, .rows = kBatchRows, .k = 45, .n = 7});
  cases.push_back({.op = CaseOp::kNorm, .rows = kBatchRows, .k = 100});
  cases.push_back({.op = CaseOp::kHead,
                   .type = QuantType::kQ8_0,
                   .rows = kBatchRows,
                   .k = 64,
                   .n = 500,
                   .soft_cap = 2});
  cases.push_back({.op = CaseOp::kCandidates,
                   .rows = kBatchRows,
                   .n = 700,
                   .bias = true,
                   .scale = true,
                   .used = 20});
  for (const int head_dim : {32, 40}) {
    cases.push_back({.op = CaseOp::kDeltaNet,
                     .rows = kBatchRows,
                     .n_head = 4,
                     .n_head_kv = 2,
                     .head_dim = head_dim});
  }
  cases.push_back({.op = CaseOp::kHyper, .rows = kBatchRows, .k = 48, .n = 20, .streams = 3});
  cases.push_back({.op = CaseOp::kPle, .rows = kBatchRows, .k = 40, .streams = 3});
  // Few of many blocks: the best so far are thinned out again and again.
  cases.push_back({.op = CaseOp::kQsa,
                   .rows = kBatchRows,
                   .n_head = 2,
                   .n_head_kv = 1,
                   .head_dim = 32,
                   .n_rot = 16,
                   .head_norm = true,
                   .ratio = 1,
                   .blocks = 3,
                   .context = 500});
  for (const int ratio : {1, 4, 50}) {
    cases.push_back({.op = CaseOp::kQsa,
                     .rows = kBatchRows,
                     .kv_type = KvType::kQ8_0,
                     .n_head = 6,
                     .n_head_kv = 2,
                     .head_dim = 80,
                     .n_rot = 16,
                     .head_norm = true,
                     .ratio = ratio,
                     .blocks = ratio == 50 ? 1 : 12,
                     .context = 33});
  }
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kQ8_0}) {
    cases.push_back({.op = CaseOp::kAttention,
                     .rows = kBatchRows,
                     .kv_type = type,
                     .n_head = 6,
                     .n_head_kv = 2,
                     .head_dim = 80,
                     .n_rot = 80,
                     .head_norm = true,
                     .context = 30});
    cases.push_back({.op = CaseOp::kAttention,
                     .rows = kBatchRows,
                     .kv_type = type,
                     .n_head = 3,
                     .n_head_kv = 3,
                     .head_dim = 32,
                     .n_rot = 16,
                     .interleaved = true,
                     .window = 100});
  }
  return cases;
}

TEST(BackendTest, BitsDoNotDependOnBatchOrThreads) {
  const std::unique_ptr<Backend> one = MakeBackend(1), two = MakeBackend(2), three = MakeBackend(3);
  for (const OpCase& op_case : BatchCases()) {
    const std::vector<float> expected = RunCase(*one, op_case, 1);
    EXPECT_TRUE(SameBits(expected, RunCase(*one, op_case, kBatchRows)))
        << CaseName(op_case) << " whole";
    EXPECT_TRUE(SameBits(expected, RunCase(*two, op_case, 7))) << CaseName(op_case) << " by 7";
    EXPECT_TRUE(SameBits(expected, RunCase(*three, op_case, 64))) << CaseName(op_case) << " by 64";
    EXPECT_TRUE(SameBits(expected, RunCase(*two, op_case, 3))) << CaseName(op_case) << " by 3";
  }
}

// Whether rows of one sequence depend on earlier ones.
bool RowsMeet(CaseOp op) {
  return op == CaseOp::kAttention || op == CaseOp::kQsa || op == CaseOp::kDeltaNet ||
         op == CaseOp::kPle;
}

TEST(BackendTest, ARowThatIsNotANumberTouchesNoOther) {
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  constexpr int64_t kPoisoned = kBatchRows / 2 - 9;
  for (const OpCase& op_case : BatchCases()) {
    const std::vector<float> clean = RunCase(*backend, op_case, kBatchRows);
    const std::vector<float> poisoned = RunCase(*backend, op_case, kBatchRows, kPoisoned);
    ASSERT_EQ(clean.size(), poisoned.size());
    const int64_t width = static_cast<int64_t>(clean.size()) / op_case.rows;
    // Later rows of the same sequence see the poisoned key; earlier ones must not.
    const int64_t last = RowsMeet(op_case.op) ? kPoisoned : op_case.rows;
    for (int64_t row = 0; row < last; ++row) {
      if (row == kPoisoned) continue;
      ASSERT_EQ(std::memcmp(clean.data() + row * width, poisoned.data() + row * width,
                            width * sizeof(float)),
                0)
          << CaseName(op_case) << " row " << row;
    }
    for (int64_t i = 0; i < width; ++i) {
      ASSERT_TRUE(std::isnan(poisoned[kPoisoned * width + i])) << CaseName(op_case);
    }
  }
}

TEST(BackendTest, CandidatesOfUnlikelyRows) {
  const std::unique_ptr<Backend> backend = MakeBackend(2);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kMax = std::numeric_limits<float>::max();
  const std::vector<float> logits = {1, 2, 3, 3, /**/ kMax, -kMax, 0, kInf, /**/ 1, kMax, -0.0f, 0};
  auto buffer = backend->Allocate(logits.size() * sizeof(float));
  ASSERT_TRUE(buffer.ok());
  const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(logits.data()),
                                        logits.size() * sizeof(float));
  ASSERT_TRUE(backend->Upload(bytes, **buffer, 0).ok());
  const std::vector<LogitEdit> forbid = {
      {0, 0, -kInf}, {1, 0, -kInf}, {2, 0, -kInf}, {3, 3, -kInf}};
  // Sums are clamped; an edit after the one that forbids does nothing.
  const std::vector<LogitEdit> clamp = {{0, 0, -kInf}, {0, 0, 99}, {1, 0, kMax}, {1, 1, 0}};
  std::vector<CandidateQuery> queries = {
      {.edits = forbid, .temperature = 1},
      {.temperature = 1},
      {.edits = clamp, .frequency_penalty = 1, .temperature = 1, .least = 4, .most = 9}};
  std::vector<RowCandidates> found(3);
  const TopCandidatesArgs args{
      .logits = {.buffer = buffer->get(), .row_count = 3, .width = 4, .stride = 4},
      .queries = queries,
      .out = absl::MakeSpan(found)};
  ASSERT_TRUE(backend->TopCandidates(args).ok());
  EXPECT_TRUE(found[0].all_finite);
  EXPECT_EQ(found[0].largest, -kInf);
  EXPECT_EQ(found[0].weight_sum, 0);
  EXPECT_TRUE(found[0].candidates.empty());
  EXPECT_FALSE(found[1].all_finite);
  EXPECT_TRUE(found[2].all_finite);
  EXPECT_EQ(found[2].weight_sum, 1);
  std::vector<int> tokens;
  for (const Candidate& candidate : found[2].candidates) tokens.push_back(candidate.token_id);
  EXPECT_THAT(tokens, ElementsAre(1, 2, 3));  // -0 and 0 are a tie
  EXPECT_EQ(found[2].candidates.at(0).logit, kMax);

  const auto refused = [&](const CandidateQuery& query) {
    queries[1] = query;
    return backend->TopCandidates(args).code() == absl::StatusCode::kInvalidArgument;
  };
  const std::vector<LogitEdit> beyond = {{4, 0, 1}}, negative = {{-1, 0, 1}},
                               unordered = {{2, 0, 1}, {1, 0, 1}};
  EXPECT_TRUE(refused({.edits = beyond}));
  EXPECT_TRUE(refused({.edits = negative}));
  EXPECT_TRUE(refused({.edits = unordered}));
  EXPECT_TRUE(refused({.least = 0}));
  EXPECT_TRUE(refused({.least = 3, .most = 2}));
  EXPECT_TRUE(refused({.most = kMaxCandidates + 1}));
  queries.resize(2);
  EXPECT_FALSE(
      backend
          ->TopCandidates({.logits = args.logits, .queries = queries, .out = absl::MakeSpan(found)})
          .ok());
}

TEST(TopIndicesTest, OrdersByValueThenIndexAndPutsNanLast) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values = {0.1f, nan, 0.5f, 0.1f, 0.5f, nan, 0.7f};
  std::vector<int> indices(7);
  TopIndices(values.data(), 7, 7, indices.data());
  EXPECT_THAT(indices, ElementsAre(6, 2, 4, 0, 3, 1, 5));
  TopIndices(values.data(), 7, 2, indices.data());
  EXPECT_EQ(indices[0], 6);
  EXPECT_EQ(indices[1], 2);
  const std::vector<float> nans(4, nan);
  TopIndices(nans.data(), 4, 3, indices.data());
  EXPECT_EQ(indices[0], 0);
  EXPECT_EQ(indices[1], 1);
  EXPECT_EQ(indices[2], 2);
}

TEST(BackendTest, RefusesWhatDoesNotFit) {
  const std::unique_ptr<Backend> backend = MakeBackend(1);
  EXPECT_EQ(CreateCpuBackend({.instruction_set = "sse"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(backend->Allocate(-1).ok());
  const std::vector<uint8_t> bytes(64 * 4);
  EXPECT_FALSE(
      backend
          ->LoadWeight(
              {.type = QuantType::kF32, .input_width = 8, .output_width = 9, .data = bytes})
          .ok());
  EXPECT_FALSE(
      backend
          ->LoadWeight(
              {.type = QuantType::kQ8_0, .input_width = 8, .output_width = 8, .data = bytes})
          .ok());
  EXPECT_FALSE(
      backend
          ->LoadWeight(
              {.type = QuantType::kI8, .input_width = 16, .output_width = 16, .data = bytes})
          .ok());
  auto weight = backend->LoadWeight(
      {.type = QuantType::kF32, .input_width = 8, .output_width = 8, .data = bytes});
  ASSERT_TRUE(weight.ok());
  auto buffer = backend->Allocate(100 * 4);
  ASSERT_TRUE(buffer.ok());
  const Tensor in{.buffer = buffer->get(), .row_count = 2, .width = 8, .stride = 8, .first = 0};
  Tensor out{.buffer = buffer->get(), .row_count = 2, .width = 8, .stride = 8, .first = 84};
  EXPECT_TRUE(backend->Linear({.matrix = {weight->get()}, .in = in, .out = out}).ok());
  out.first = 85;
  EXPECT_EQ(backend->Linear({.matrix = {weight->get()}, .in = in, .out = out}).code(),
            absl::StatusCode::kInvalidArgument);
  out.first = 84;
  EXPECT_FALSE(backend->Embed({.table = weight->get(), .out = out}).ok());  // no step is open
  EXPECT_FALSE(backend->EndStep().ok());
  const std::vector<int32_t> tokens = {0, 8}, pages = {0};
  const std::vector<StepSequence> sequences = {
      {.first_position = 62, .row_count = 2, .pages = pages}};
  ASSERT_TRUE(backend->BeginStep({.token_ids = tokens, .sequences = sequences}).ok());
  EXPECT_FALSE(backend->BeginStep({.token_ids = tokens, .sequences = sequences}).ok());
  EXPECT_FALSE(backend->Embed({.table = weight->get(), .out = out}).ok());  // token 8 of 8
  EXPECT_TRUE(backend->EndStep().ok());
  const std::vector<StepSequence> beyond = {{.first_position = 63, .row_count = 2, .pages = pages}};
  EXPECT_FALSE(backend->BeginStep({.token_ids = tokens, .sequences = beyond}).ok());
  const std::vector<int32_t> wrong_count = {0};
  EXPECT_FALSE(backend->BeginStep({.token_ids = wrong_count, .sequences = sequences}).ok());
}

}  // namespace
}  // namespace warpline
