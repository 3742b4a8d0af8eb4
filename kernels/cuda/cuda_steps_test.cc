// Decode steps of the CUDA back end as a whole: recorded and replayed, failed, and with ops that
// leave work to one another. Skipped where there is no device.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_library.h"
#include "kernels/cuda/device.h"

namespace warpline::cuda {
namespace {

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

}  // namespace
}  // namespace warpline::cuda
