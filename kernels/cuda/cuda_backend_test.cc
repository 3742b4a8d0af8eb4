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
