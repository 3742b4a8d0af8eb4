// The CUDA back end against plain loops over the op table, prompt and decode steps, and a row's
// bits against the rows beside it. Skipped where there is no device.
#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/op_cases.h"
#include "kernels/cuda/cuda_library.h"
#include "kernels/cuda/decode_rows.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/repack.h"
#include "kernels/cuda/tile_tables.h"
#include "kernels/cuda/weight_staging.h"

namespace warpline::cuda {
namespace {

// Of the normalised mean square error of products of halves. Operands are 2^-11 off at most, which
// is an error of 1e-7; some hundred outputs, and sums that nearly cancel, raise it a few times.
constexpr double kHalfBound = 2e-6;

bool IsHybrid(CaseOp op) {
  return op == CaseOp::kDeltaNet || op == CaseOp::kHyper || op == CaseOp::kPle ||
         op == CaseOp::kQsa;
}

// What this build has kernels for; fewer types compile faster.
bool IsBuilt(QuantType type) {
  for (const KernelRow& row : TileRows()) {
    if (row.type == type) return true;
  }
  return false;
}

std::vector<OpCase> CudaCases() {
  std::vector<OpCase> cases;
  for (const OpCase& op_case : TestCases()) {
    if (!IsHybrid(op_case.op) && IsBuilt(op_case.type)) cases.push_back(op_case);
  }
  return cases;
}

double BoundOf(const OpCase& op_case) {
  switch (op_case.op) {
    case CaseOp::kNorm:
    case CaseOp::kEmbed:
      return 1e-12;
    case CaseOp::kCandidates:
      return op_case.bound;
    case CaseOp::kAttention:
      // Keys, values and queries of the fast kernels are halves.
      return std::max(op_case.bound, 2e-6);
    default:
      return op_case.type == QuantType::kF32 ? 1e-11 : kHalfBound;
  }
}

// Squared error over squared values; infinite when something is not finite.
double ErrorOf(const std::vector<float>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return difference == 0 ? 0 : difference / size;
}

class CudaBackendTest : public testing::TestWithParam<::warpline::StepKind> {
 protected:
  void SetUp() override {
    auto backend = CreateCudaBackend({});
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = std::move(backend).value();
    // Ops take the path of the step that was begun last.
    ASSERT_TRUE(backend_->BeginStep({.kind = GetParam()}).ok());
    ASSERT_TRUE(backend_->EndStep().ok());
  }

  std::vector<float> RunChunks(const OpCase& op_case, int64_t chunk) {
    auto fixture = MakeFixture(*backend_, op_case);
    EXPECT_TRUE(fixture.ok()) << CaseName(op_case) << ": " << fixture.status();
    if (!fixture.ok()) return {};
    for (int64_t first = 0; first < op_case.rows; first += chunk) {
      const absl::Status status = (*fixture)->Run(first, std::min(chunk, op_case.rows - first));
      EXPECT_TRUE(status.ok()) << CaseName(op_case) << ": " << status;
    }
    return (*fixture)->Read();
  }

  std::unique_ptr<Backend> backend_;
};

TEST_P(CudaBackendTest, AgreesWithPlainLoops) {
  double worst[16] = {};
  for (const OpCase& op_case : CudaCases()) {
    auto fixture = MakeFixture(*backend_, op_case);
    ASSERT_TRUE(fixture.ok()) << CaseName(op_case) << ": " << fixture.status();
    const absl::Status status = (*fixture)->Run(0, op_case.rows);
    ASSERT_TRUE(status.ok()) << CaseName(op_case) << ": " << status;
    const double error = ErrorOf((*fixture)->Read(), (*fixture)->Expected());
    EXPECT_LE(error, BoundOf(op_case)) << CaseName(op_case);
    double& most = worst[static_cast<int>(op_case.op)];
    most = std::max(most, error);
  }
  for (int op = 0; op < 16; ++op) {
    if (worst[op] > 0) std::printf("op %d: worst error %.3g\n", op, worst[op]);
  }
}

TEST_P(CudaBackendTest, BitsDoNotDependOnTheOtherRows) {
  constexpr int64_t kRows = 300;
  std::vector<OpCase> cases;
  for (const QuantType type : {QuantType::kF32, QuantType::kQ4_1, QuantType::kQ8_0}) {
    cases.push_back({.type = type, .rows = kRows, .k = 256, .n = 110, .bias = true, .scale = true});
    cases.push_back({.op = CaseOp::kDenseFfn, .type = type, .rows = kRows, .k = 256, .n = 512});
    cases.push_back({.op = CaseOp::kMoe,
                     .type = type,
                     .rows = kRows,
                     .k = 256,
                     .n = 256,
                     .renormalise = true,
                     .shared = true,
                     .experts = 8,
                     .used = 3});
  }
  cases.push_back({.op = CaseOp::kNorm, .rows = kRows, .k = 100});
  cases.push_back({.op = CaseOp::kCandidates,
                   .rows = kRows,
                   .n = 3000,
                   .bias = true,
                   .scale = true,
                   .used = 100});
  for (const OpCase& op_case : cases) {
    const std::vector<float> whole = RunChunks(op_case, kRows);
    for (const int64_t chunk : {1, 7, 64}) {
      const std::vector<float> parts = RunChunks(op_case, chunk);
      ASSERT_EQ(whole.size(), parts.size());
      EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)), 0)
          << CaseName(op_case) << " by " << chunk;
    }
  }
}

// Prompts multiply floats in tiles of four sizes, by how many rows there are.
TEST_P(CudaBackendTest, BitsDoNotDependOnTheTileOfFloats) {
  constexpr int64_t kRows = 1000;
  for (const int64_t k : {236, 101}) {
    const OpCase op_case = {
        .type = QuantType::kF32, .rows = kRows, .k = k, .n = 400, .padding = k % 4};
    const std::vector<float> whole = RunChunks(op_case, kRows);
    for (const int64_t chunk : {1, 7, 64, 250, 500}) {
      const std::vector<float> parts = RunChunks(op_case, chunk);
      ASSERT_EQ(whole.size(), parts.size());
      EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)), 0)
          << CaseName(op_case) << " by " << chunk;
    }
  }
}

TEST_P(CudaBackendTest, CandidatesTellOfALogitThatIsNotANumber) {
  const OpCase op_case = {
      .op = CaseOp::kCandidates, .rows = 40, .n = 5000, .bias = true, .used = 9};
  auto clean = MakeFixture(*backend_, op_case);
  auto poisoned = MakeFixture(*backend_, op_case, 35);
  ASSERT_TRUE(clean.ok() && poisoned.ok());
  ASSERT_TRUE((*clean)->Run(0, op_case.rows).ok());
  ASSERT_TRUE((*poisoned)->Run(0, op_case.rows).ok());
  const std::vector<float> expected = (*clean)->Read();
  const std::vector<float> got = (*poisoned)->Read();
  ASSERT_EQ(got.size(), expected.size());
  const size_t width = got.size() / op_case.rows;
  for (size_t i = 0; i < got.size(); ++i) {
    if (i / width == 35) {
      EXPECT_TRUE(std::isnan(got[i])) << i;
    } else {
      EXPECT_EQ(got[i], expected[i]) << i;
    }
  }
}

absl::Span<const uint8_t> BytesOf(const std::vector<float>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)};
}

// Decode steps of a shape that came before are replayed: with other inputs, and after steps of
// other shapes, they must compute what the ops compute one by one.
TEST(CudaRecordTest, ReplayedStepsComputeWhatTheOpsCompute) {
  constexpr int64_t kWidth = 256;
  constexpr int kMostRows = 9;
  auto created = CreateCudaBackend({});
  ASSERT_TRUE(created.ok()) << created.status();
  Backend& backend = **created;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto randoms = [&](int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
  };
  std::vector<uint8_t> blocks(RowBytes(QuantType::kF16, kWidth * kWidth));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = random() & (i % 2 == 1 ? 0xBB : 0xFF);
  const auto weight = backend.LoadWeight(
      {.type = QuantType::kF16, .input_width = kWidth, .output_width = kWidth, .data = blocks});
  ASSERT_TRUE(weight.ok()) << weight.status();
  const std::vector<float> gamma_values = randoms(kWidth);
  const auto gamma = backend.Allocate(BytesOf(gamma_values).size());
  const auto in = backend.Allocate(kMostRows * kWidth * sizeof(float));
  const auto out = backend.Allocate(kMostRows * kWidth * sizeof(float));
  ASSERT_TRUE(gamma.ok() && in.ok() && out.ok());
  ASSERT_TRUE(backend.Upload(BytesOf(gamma_values), **gamma, 0).ok());
  const auto run = [&](const std::vector<float>& x) {
    const int64_t rows = static_cast<int64_t>(x.size()) / kWidth;
    const Tensor from{.buffer = in->get(), .row_count = rows, .width = kWidth, .stride = kWidth};
    const Tensor to{.buffer = out->get(), .row_count = rows, .width = kWidth, .stride = kWidth};
    EXPECT_TRUE(backend.Upload(BytesOf(x), **in, 0).ok());
    EXPECT_TRUE(
        backend.NormConvert({.in = from, .gamma = gamma->get(), .eps = 1e-6f, .out = from}).ok());
    EXPECT_TRUE(backend.Linear({.matrix = {weight->get()}, .in = from, .out = to}).ok());
    EXPECT_TRUE(
        backend.Linear({.matrix = {weight->get()}, .in = from, .out = to, .accumulate = true})
            .ok());
  };
  const auto read = [&](size_t count) {
    std::vector<float> values(count);
    EXPECT_TRUE(
        backend
            .Download(**out, 0, {reinterpret_cast<uint8_t*>(values.data()), count * sizeof(float)})
            .ok());
    return values;
  };
  const std::vector<int32_t> page = {0};
  for (const int rows : {3, 9, 3, 9, 1, 3, 9, 3, 1, 9, 1}) {
    const std::vector<float> x = randoms(rows * kWidth);
    const std::vector<int32_t> tokens(rows);
    std::vector<StepSequence> sequences;
    for (int r = 0; r < rows; ++r) {
      sequences.push_back({.kv_slot = r, .first_position = r, .row_count = 1, .pages = page});
    }
    ASSERT_TRUE(backend
                    .BeginStep({.kind = ::warpline::StepKind::kDecode,
                                .token_ids = tokens,
                                .sequences = sequences})
                    .ok());
    run(x);
    ASSERT_TRUE(backend.EndStep().ok());
    const std::vector<float> in_step = read(x.size());
    run(x);  // outside of a step nothing is recorded
    EXPECT_THAT(in_step, testing::ContainerEq(read(x.size()))) << rows << " rows";
  }
}

// A decode step of a norm, experts that are added to the residual, and the norm behind them: the
// ops that leave work to one another.
class CudaFusionTest : public testing::Test {
 protected:
  static constexpr int64_t kWidth = 256;
  static constexpr int64_t kExperts = 8;
  static constexpr int64_t kMostRows = 33;
  enum class Look { kNever, kBehindTheFirstNorm, kBehindTheExperts };
  struct Results {
    std::vector<float> seen;  // where the step was looked into: what the op before has made
    std::vector<float> residual, normed, product;
  };

  void SetUp() override {
    auto created = CreateCudaBackend({});
    ASSERT_TRUE(created.ok()) << created.status();
    backend_ = *std::move(created);
    const auto load = [this](QuantType type, int64_t experts, int64_t rows) {
      return backend_->LoadWeight({.type = type,
                                   .input_width = kWidth,
                                   .output_width = rows,
                                   .expert_count = experts,
                                   .data = BlocksFor(type, experts * rows)});
    };
    for (std::unique_ptr<Weight>* const weight : {&gate_, &up_, &down_}) {
      auto loaded = load(QuantType::kF16, kExperts, kWidth);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      *weight = *std::move(loaded);
    }
    auto router = load(QuantType::kF32, 1, kExperts);
    auto matrix = load(QuantType::kF16, 1, kWidth);
    ASSERT_TRUE(router.ok() && matrix.ok());
    router_ = *std::move(router);
    matrix_ = *std::move(matrix);
    for (std::unique_ptr<Buffer>* const buffer : {&residual_, &normed_, &product_, &gamma_}) {
      auto made = backend_->Allocate(kMostRows * kWidth * sizeof(float));
      ASSERT_TRUE(made.ok()) << made.status();
      *buffer = *std::move(made);
    }
  }

  std::vector<float> Randoms(int64_t count, float size) {
    std::normal_distribution<float> normal(0, size);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }
  // Small numbers.
  const std::vector<uint8_t>& BlocksFor(QuantType type, int64_t rows) {
    blocks_.resize(RowBytes(type, kWidth) * rows);
    if (type == QuantType::kF32) {
      const std::vector<float> values = Randoms(rows * kWidth, 0.1f);
      std::memcpy(blocks_.data(), values.data(), blocks_.size());
    } else {
      for (size_t i = 0; i < blocks_.size(); ++i)
        blocks_[i] = random_() & (i % 2 == 1 ? 0xBB : 0xFF);
    }
    return blocks_;
  }
  std::vector<float> Read(const Buffer& buffer, int rows) {
    std::vector<float> values(rows * kWidth);
    const size_t bytes = values.size() * sizeof(float);
    EXPECT_TRUE(
        backend_->Download(buffer, 0, {reinterpret_cast<uint8_t*>(values.data()), bytes}).ok());
    return values;
  }

  // The next step of a shape is the first one again, which runs as it is.
  void ForgetRecords() { EXPECT_TRUE(backend_->Allocate(4).ok()); }

  Results Run(const std::vector<float>& x, Look look) {
    Results results;
    const int rows = static_cast<int>(x.size() / kWidth);
    Begin(x);
    if (backend_->NeedsOps()) RunOps(rows, look, results);
    EXPECT_TRUE(backend_->EndStep().ok());
    results.residual = Read(*residual_, rows);
    results.normed = Read(*normed_, rows);
    results.product = Read(*product_, rows);
    return results;
  }
  // A step whose residual is `x`.
  void Begin(const std::vector<float>& x) {
    EXPECT_TRUE(backend_->Upload(BytesOf(x), *residual_, 0).ok());
    const int rows = static_cast<int>(x.size() / kWidth);
    const std::vector<int32_t> tokens(rows);
    const std::vector<int32_t> page = {0};
    std::vector<StepSequence> sequences;
    for (int r = 0; r < rows; ++r) {
      sequences.push_back({.kv_slot = r, .first_position = r, .row_count = 1, .pages = page});
    }
    EXPECT_TRUE(backend_
                    ->BeginStep({.kind = ::warpline::StepKind::kDecode,
                                 .token_ids = tokens,
                                 .sequences = sequences})
                    .ok());
  }
  void RunOps(int rows, Look look, Results& results) {
    const Tensor residual = RowsOf(*residual_, rows);
    const Tensor normed = RowsOf(*normed_, rows);
    const NormConvertArgs norm = {
        .in = residual, .gamma = gamma_.get(), .eps = 1e-6f, .out = normed};
    EXPECT_TRUE(backend_->NormConvert(norm).ok());
    if (look == Look::kBehindTheFirstNorm) results.seen = Read(*normed_, rows);
    RunExperts(normed, residual, true);
    if (look == Look::kBehindTheExperts) results.seen = Read(*residual_, rows);
    EXPECT_TRUE(backend_->NormConvert(norm).ok());
    EXPECT_TRUE(
        backend_->Linear({.matrix = {matrix_.get()}, .in = normed, .out = RowsOf(*product_, rows)})
            .ok());
  }

  static Tensor RowsOf(Buffer& buffer, int rows) {
    return {.buffer = &buffer, .row_count = rows, .width = kWidth, .stride = kWidth};
  }
  void RunExperts(const Tensor& in, const Tensor& out, bool accumulate) {
    EXPECT_TRUE(backend_
                    ->MoeFfn({.router = {router_.get()},
                              .gate = gate_.get(),
                              .up = up_.get(),
                              .down = down_.get(),
                              .used_count = 3,
                              .renormalise = true,
                              .in = in,
                              .out = out,
                              .accumulate = accumulate})
                    .ok());
  }

  std::mt19937 random_{7};
  std::vector<uint8_t> blocks_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Weight> router_, gate_, up_, down_, matrix_;
  std::unique_ptr<Buffer> residual_, normed_, product_, gamma_;
};

// An op fails in the first step of a shape, in the one that is recorded, and in one that might have
// been a replay: the steps behind them are right.
TEST_F(CudaFusionTest, AStepThatFailsIsForgotten) {
  ASSERT_TRUE(backend_->Upload(BytesOf(Randoms(kWidth, 1)), *gamma_, 0).ok());
  const int rows = 5;
  const std::vector<float> x = Randoms(rows * kWidth, 1);
  ForgetRecords();
  const Results right = Run(x, Look::kNever);
  const Tensor residual = RowsOf(*residual_, rows);
  Tensor narrow = RowsOf(*normed_, rows);
  narrow.width = kWidth / 2;
  for (int good_steps = 0; good_steps < 4; ++good_steps) {
    ForgetRecords();
    for (int step = 0; step < good_steps; ++step) Run(x, Look::kNever);
    Begin(x);
    if (!backend_->NeedsOps()) {
      EXPECT_TRUE(backend_->EndStep().ok());
      continue;
    }
    EXPECT_TRUE(backend_
                    ->NormConvert({.in = residual,
                                   .gamma = gamma_.get(),
                                   .eps = 1e-6f,
                                   .out = RowsOf(*normed_, rows)})
                    .ok());
    EXPECT_FALSE(backend_->Linear({.matrix = {matrix_.get()}, .in = narrow, .out = residual}).ok());
    backend_->AbandonStep();
    for (int step = 0; step < 3; ++step) {
      const Results again = Run(x, Look::kNever);
      EXPECT_EQ(again.residual, right.residual) << good_steps << " steps before";
      EXPECT_EQ(again.product, right.product) << good_steps << " steps before";
    }
  }
}

// With large norms hidden values are beyond halves, and rows are computed again in either kernel.
TEST_F(CudaFusionTest, SumsAndTheirNormHaveTheSameBitsTogetherAndApart) {
  for (const float gamma : {1.0f, 1e4f}) {
    ASSERT_TRUE(backend_->Upload(BytesOf(Randoms(kWidth, gamma)), *gamma_, 0).ok());
    for (const int rows : {1, 5, 33}) {
      const std::vector<float> x = Randoms(rows * kWidth, 1);
      ForgetRecords();
      const Results apart = Run(x, Look::kBehindTheExperts);
      EXPECT_EQ(apart.seen, apart.residual) << rows << " rows";
      EXPECT_TRUE(std::isfinite(apart.normed[0]));
      EXPECT_NE(apart.residual, x);
      ForgetRecords();
      // The first one, the record and replays.
      for (int step = 0; step < 5; ++step) {
        const Results together = Run(x, Look::kNever);
        EXPECT_EQ(together.residual, apart.residual) << rows << " rows, step " << step;
        EXPECT_EQ(together.normed, apart.normed) << rows << " rows, step " << step;
        EXPECT_EQ(together.product, apart.product) << rows << " rows, step " << step;
      }
    }
  }
}

// Blocks of the router that norm rows anew must not find them normed.
TEST_F(CudaFusionTest, ANormInPlaceIsNoPartOfTheRouter) {
  ASSERT_TRUE(backend_->Upload(BytesOf(Randoms(kWidth, 1)), *gamma_, 0).ok());
  const int rows = 33;
  const std::vector<float> x = Randoms(rows * kWidth, 1);
  const Tensor residual = RowsOf(*residual_, rows);
  std::vector<float> outputs[2];
  for (const bool is_apart : {false, true}) {
    ForgetRecords();
    Begin(x);
    EXPECT_TRUE(
        backend_
            ->NormConvert({.in = residual, .gamma = gamma_.get(), .eps = 1e-6f, .out = residual})
            .ok());
    if (is_apart) Read(*residual_, rows);
    RunExperts(residual, RowsOf(*product_, rows), false);
    EXPECT_TRUE(backend_->EndStep().ok());
    outputs[is_apart] = Read(*product_, rows);
  }
  EXPECT_EQ(outputs[0], outputs[1]);
}

TEST_F(CudaFusionTest, ANormThatIsLeftIsThereWhenItIsLookedAt) {
  const std::vector<float> gamma = Randoms(kWidth, 1);
  ASSERT_TRUE(backend_->Upload(BytesOf(gamma), *gamma_, 0).ok());
  for (const int rows : {1, 5, 33}) {
    const std::vector<float> x = Randoms(rows * kWidth, 1);
    ForgetRecords();
    const std::vector<float> seen = Run(x, Look::kBehindTheFirstNorm).seen;
    ASSERT_EQ(seen.size(), x.size());
    for (int row = 0; row < rows; ++row) {
      const float* const values = x.data() + row * kWidth;
      double squares = 0;
      for (int64_t i = 0; i < kWidth; ++i) squares += double{values[i]} * values[i];
      const double factor = 1 / std::sqrt(squares / kWidth + 1e-6);
      for (int64_t i = 0; i < kWidth; ++i) {
        EXPECT_NEAR(seen[row * kWidth + i], values[i] * factor * gamma[i], 1e-5)
            << rows << " rows, row " << row << " value " << i;
      }
    }
  }
}

// Weights of several pieces and odd sizes, in memory that served before.
TEST(WeightStagingTest, CopiesEveryByte) {
  auto stream = Stream::Create();
  ASSERT_TRUE(stream.ok()) << stream.status();
  WeightStaging staging(0);
  std::mt19937 random(5);
  for (const int64_t bytes : {int64_t{3}, int64_t{50'000'001}, int64_t{50'000'001}, int64_t{9}}) {
    std::vector<uint8_t> sent(static_cast<size_t>(bytes));
    for (uint8_t& byte : sent) byte = static_cast<uint8_t>(random());
    auto memory = staging.Take(bytes);
    ASSERT_TRUE(memory.ok()) << memory.status();
    ASSERT_TRUE(staging.Copy(sent, memory->as(), stream->get()).ok());
    std::vector<uint8_t> got(sent.size());
    ASSERT_EQ(cudaMemcpyAsync(got.data(), memory->as(), got.size(), cudaMemcpyDeviceToHost,
                              stream->get()),
              cudaSuccess);
    ASSERT_TRUE(stream->Synchronize().ok());
    EXPECT_EQ(std::memcmp(got.data(), sent.data(), sent.size()), 0) << bytes;
    staging.Give(*std::move(memory));
  }
  staging.Finish();
}

TEST(MaxAbsTest, IsThatOfTheHost) {
  constexpr int64_t kValues = 64 * 1024;
  const auto grids = DeviceGrids::Create();
  const auto stream = Stream::Create();
  ASSERT_TRUE(grids.ok() && stream.ok());
  for (const QuantType type : {QuantType::kBF16, QuantType::kMXFP4, QuantType::kF32}) {
    std::mt19937 random(6);  // some of which are no finite numbers
    std::vector<uint8_t> blocks(RowBytes(type, 2 * kValues));
    for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random());
    const auto memory = DeviceBuffer::Create(static_cast<int64_t>(blocks.size()));
    ASSERT_TRUE(memory.ok());
    ASSERT_EQ(cudaMemcpy(memory->as(), blocks.data(), blocks.size(), cudaMemcpyHostToDevice),
              cudaSuccess);
    const auto got = MaxAbsOnDevice({.type = type,
                                     .blocks = memory->as(),
                                     .experts = 2,
                                     .expert_bytes = RowBytes(type, kValues),
                                     .expert_values = kValues,
                                     .grids = grids->grids()},
                                    stream->get());
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, MaxAbsOnHost(type, blocks.data(), 2 * kValues)) << InfoOf(type).name;
  }
}

TEST(CudaMemoryTest, KnowsWhatIsFree) {
  auto backend = CreateCudaBackend({});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto before = (*backend)->Memory();
  ASSERT_TRUE(before.ok() && before->has_value());
  const auto buffer = (*backend)->Allocate(int64_t{256} << 20);
  ASSERT_TRUE(buffer.ok());
  const auto after = (*backend)->Memory();
  ASSERT_TRUE(after.ok() && after->has_value());
  EXPECT_GE((*before)->free - (*after)->free, int64_t{256} << 20);
  EXPECT_GE((*after)->total, (*before)->free);
  // More than there is: an error, after which the device goes on.
  EXPECT_EQ((*backend)->Allocate((*after)->total * 2).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE((*backend)->Allocate(4096).ok());
}

// Rows with values that no half holds are computed again, and only they: each row is right by
// itself, and none has other bits because of its neighbours.
TEST_P(CudaBackendTest, RowsBeyondHalvesAreComputedAgain) {
  for (const OpCase& op_case : CudaCases()) {
    if (op_case.magnitude == 1) continue;
    auto fixture = MakeFixture(*backend_, op_case);
    ASSERT_TRUE(fixture.ok()) << fixture.status();
    ASSERT_TRUE((*fixture)->Run(0, op_case.rows).ok()) << CaseName(op_case);
    const std::vector<float> got = (*fixture)->Read();
    const std::vector<double> expected = (*fixture)->Expected();
    ASSERT_EQ(got.size(), expected.size());
    const int64_t width = static_cast<int64_t>(got.size()) / op_case.rows;
    for (int64_t row = 0; row < op_case.rows; ++row) {
      const auto begin = row * width;
      EXPECT_LE(ErrorOf({got.begin() + begin, got.begin() + begin + width},
                        {expected.begin() + begin, expected.begin() + begin + width}),
                kHalfBound)
          << CaseName(op_case) << " row " << row;
    }
    if (op_case.accumulate) continue;  // A second run would add to the first.
    const std::vector<float> parts = RunChunks(op_case, 1);
    ASSERT_EQ(parts.size(), got.size());
    EXPECT_EQ(std::memcmp(parts.data(), got.data(), got.size() * sizeof(float)), 0)
        << CaseName(op_case);
  }
}

TEST(CudaTilesTest, APolicyIsTakenOrRefused) {
  for (const char* tiles : {"wgmma", "mma", "wmma", "off"}) {
    const auto backend = CreateCudaBackend({.tiles = tiles});
    if (!backend.ok()) {
      EXPECT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition);
      std::printf("%s: %s\n", tiles, std::string(backend.status().message()).c_str());
      continue;
    }
    EXPECT_THAT((*backend)->Describe(), testing::HasSubstr(std::string("tiles=") + tiles));
    for (const auto kind : {::warpline::StepKind::kPrompt, ::warpline::StepKind::kDecode}) {
      ASSERT_TRUE((*backend)->BeginStep({.kind = kind}).ok());
      ASSERT_TRUE((*backend)->EndStep().ok());
      for (const CaseOp op : {CaseOp::kLinear, CaseOp::kMoe}) {
        const OpCase op_case = {.op = op,
                                .type = QuantType::kF16,
                                .rows = 9,
                                .k = 256,
                                .n = 256,
                                .experts = op == CaseOp::kMoe ? 8 : 1,
                                .used = op == CaseOp::kMoe ? 3 : 1};
        auto fixture = MakeFixture(**backend, op_case);
        ASSERT_TRUE(fixture.ok()) << fixture.status();
        for (int turn = 0; turn < 3; ++turn) {
          const absl::Status status = (*fixture)->Run(0, op_case.rows);
          ASSERT_TRUE(status.ok()) << tiles << ": " << status;
        }
        EXPECT_LE(ErrorOf((*fixture)->Read(), (*fixture)->Expected()), kHalfBound) << tiles;
      }
    }
  }
  EXPECT_EQ(CreateCudaBackend({.tiles = "mosaic"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CudaNoticeTest, GenericAttentionIsToldOnce) {
  auto backend = CreateCudaBackend({});
  ASSERT_TRUE(backend.ok()) << backend.status();
  if ((*backend)->Describe().find("attention prompt wgmma") == std::string::npos) {
    GTEST_SKIP() << "all attention is generic here, which Describe says";
  }
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE((*backend)
                    ->CreateKvCache({.n_head = 8, .n_head_kv = 2, .head_dim = 128, .page_count = 1})
                    .ok());
    ASSERT_TRUE((*backend)
                    ->CreateKvCache({.n_head = 8, .n_head_kv = 2, .head_dim = 80, .page_count = 1})
                    .ok());
  }
  EXPECT_THAT((*backend)->TakeNotices(),
              testing::ElementsAre(testing::HasSubstr("no kernel for heads of 80 values")));
  EXPECT_THAT((*backend)->TakeNotices(), testing::IsEmpty());
}

TEST_P(CudaBackendTest, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(backend_->Allocate(-1).ok());
  const std::vector<uint8_t> bytes(64 * 4);
  EXPECT_FALSE(
      backend_
          ->LoadWeight(
              {.type = QuantType::kF32, .input_width = 8, .output_width = 9, .data = bytes})
          .ok());
  auto weight = backend_->LoadWeight(
      {.type = QuantType::kF32, .input_width = 8, .output_width = 8, .data = bytes});
  ASSERT_TRUE(weight.ok());
  auto buffer = backend_->Allocate(100 * 4);
  ASSERT_TRUE(buffer.ok());
  const Tensor in{.buffer = buffer->get(), .row_count = 2, .width = 8, .stride = 8};
  Tensor out{.buffer = buffer->get(), .row_count = 2, .width = 8, .stride = 8, .first = 84};
  EXPECT_TRUE(backend_->Linear({.matrix = {weight->get()}, .in = in, .out = out}).ok());
  out.first = 85;
  EXPECT_EQ(backend_->Linear({.matrix = {weight->get()}, .in = in, .out = out}).code(),
            absl::StatusCode::kInvalidArgument);
  out.first = 84;
  EXPECT_FALSE(backend_->Embed({.table = weight->get(), .out = out}).ok());  // no step is open
  EXPECT_FALSE(backend_->EndStep().ok());
}

INSTANTIATE_TEST_SUITE_P(Kinds, CudaBackendTest,
                         testing::Values(::warpline::StepKind::kPrompt,
                                         ::warpline::StepKind::kDecode),
                         [](const auto& info) {
                           return info.param == ::warpline::StepKind::kPrompt ? "Prompt" : "Decode";
                         });

}  // namespace
}  // namespace warpline::cuda

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  if (const auto count = warpline::cuda::Device::Count(); !count.ok()) {
    std::printf("skipped: %s\n", std::string(count.status().message()).c_str());
    return warpline::kExitNoDevice;
  }
  return RUN_ALL_TESTS();
}
