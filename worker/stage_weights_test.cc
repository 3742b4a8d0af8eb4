// What the back end is given of a model file: joined matrices, their biases.
#include "worker/stage_weights.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "model/gguf_test_file.h"
#include "model/model_spec.h"
#include "worker/forwarding_backend_fakes.h"
#include "worker/stage_model.h"

namespace warpline {
namespace {

using ::testing::ElementsAre;

// The CPU back end, which writes down the matrices it is given, but for embeddings and head.
class WatchedBackend final : public ForwardingBackend {
 public:
  explicit WatchedBackend(std::unique_ptr<Backend> inner) : ForwardingBackend(std::move(inner)) {}

  absl::StatusOr<std::unique_ptr<Weight>> LoadWeight(const WeightArgs& args) override {
    if (args.output_width != 4) {
      seen.push_back(absl::StrCat(InfoOf(args.type).name, " ", args.output_width,
                                  args.only_multiplied ? " multiplied" : ""));
    }
    return ForwardingBackend::LoadWeight(args);
  }

  std::vector<std::string> seen;
};

class StageWeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto cpu = CreateCpuBackend({.thread_count = 1});
    ASSERT_TRUE(cpu.ok()) << cpu.status();
    backend_ = std::make_unique<WatchedBackend>(*std::move(cpu));
  }
  std::unique_ptr<GgufFile> Open(const TestGguf& made) {
    auto file = GgufFile::Open(folder_.Write("model.gguf", made.Build()));
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? *std::move(file) : nullptr;
  }
  // The matrices of the layer's attention, as the back end got them.
  std::vector<std::string> AttentionOf(const TestGguf& made) {
    const std::unique_ptr<GgufFile> file = Open(made);
    if (file == nullptr) return {};
    const auto spec = ModelSpec::FromGguf(*file);
    EXPECT_TRUE(spec.ok()) << spec.status();
    if (!spec.ok()) return {};
    const auto stage = StageModel::Load(
        *file, *spec, {.layers = {0, 1}, .page_count = 1, .max_context = 64}, *backend_, nullptr);
    EXPECT_TRUE(stage.ok()) << stage.status();
    constexpr size_t kFeedForward = 3;  // gate, up, down
    EXPECT_GE(backend_->seen.size(), kFeedForward);
    backend_->seen.resize(std::max(backend_->seen.size(), kFeedForward) - kFeedForward);
    return backend_->seen;
  }

  TestFolder folder_;
  std::unique_ptr<WatchedBackend> backend_;
};

TEST_F(StageWeightsTest, QueriesKeysAndValuesOfOneTypeAreOneMatrix) {
  EXPECT_THAT(AttentionOf(TestModel("qwen2")),
              ElementsAre("F32 64 multiplied", "F32 32 multiplied"));
}

TEST_F(StageWeightsTest, OfSomeTypesTheOtherPartStandsAlone) {
  TestGguf made = TestModel("qwen2");
  made.ReplaceTensor("blk.0.attn_v.weight", {32, 16}, QuantType::kQ8_0);
  EXPECT_THAT(AttentionOf(made),
              ElementsAre("F32 48 multiplied", "Q8_0 16 multiplied", "F32 32 multiplied"));
}

TEST_F(StageWeightsTest, OfThreeTypesEachStandsAlone) {
  TestGguf made = TestModel("qwen2");
  made.ReplaceTensor("blk.0.attn_k.weight", {32, 16}, QuantType::kQ8_0);
  made.ReplaceTensor("blk.0.attn_v.weight", {32, 16}, QuantType::kQ4_1);
  EXPECT_THAT(AttentionOf(made), ElementsAre("F32 32 multiplied", "Q8_0 16 multiplied",
                                             "Q4_1 16 multiplied", "F32 32 multiplied"));
}

TEST_F(StageWeightsTest, AFusedMatrixIsOnlyMultipliedToo) {
  TestGguf made = TestModel("qwen2");
  for (const char* name : {"q", "k", "v"}) {
    made.RemoveTensor(absl::StrCat("blk.0.attn_", name, ".weight"));
  }
  made.AddTensor("blk.0.attn_qkv.weight", {32, 64});
  EXPECT_THAT(AttentionOf(made), ElementsAre("F32 64 multiplied", "F32 32 multiplied"));
}

TEST_F(StageWeightsTest, MatricesWithScalesAreNotJoined) {
  TestGguf made = TestModel("qwen2");
  made.AddTensor("blk.0.attn_k.scale", {1});
  EXPECT_THAT(AttentionOf(made), ElementsAre("F32 32 multiplied", "F32 16 multiplied",
                                             "F32 16 multiplied", "F32 32 multiplied"));
}

TEST_F(StageWeightsTest, PartsWithoutBiasGetZeros) {
  TestGguf made = TestModel("qwen2");
  made.AddTensor("blk.0.attn_q.bias", {32});
  made.AddTensor("blk.0.attn_v.bias", {16});
  const std::unique_ptr<GgufFile> file = Open(made);
  ASSERT_NE(file, nullptr);
  WeightLoader loader(*file, *backend_, 0, nullptr);
  const std::vector<WeightLoader::Part> parts = {
      {"blk.0.attn_q", 32}, {"blk.0.attn_k", 16}, {"blk.0.attn_v", 16}};
  const auto joined = loader.LoadJoined(parts, 32, Bias::kIfPresent);
  ASSERT_TRUE(joined.ok()) << joined.status();
  ASSERT_NE(joined->bias, nullptr);
  std::vector<float> biases(64);
  ASSERT_EQ(joined->bias->byte_count(), 64 * sizeof(float));
  ASSERT_TRUE(backend_
                  ->Download(*joined->bias, 0,
                             {reinterpret_cast<uint8_t*>(biases.data()), 64 * sizeof(float)})
                  .ok());
  std::vector<float> expected(64, 1);
  std::fill(expected.begin() + 32, expected.begin() + 48, 0.0f);
  EXPECT_EQ(biases, expected);

  const auto unbiased = loader.LoadJoined(parts, 32, Bias::kNone);
  ASSERT_TRUE(unbiased.ok()) << unbiased.status();
  EXPECT_EQ(unbiased->bias, nullptr);
}

}  // namespace
}  // namespace warpline
