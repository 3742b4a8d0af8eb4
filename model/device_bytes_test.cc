#include "model/device_bytes.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace warpline {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST(PackedBytesTest, ComesInBlocksOfRowsAndColumns) {
  EXPECT_EQ(PackedBytes(QuantType::kQ8_0, 16, 128), 2176);
  EXPECT_EQ(PackedBytes(QuantType::kQ8_0, 17, 129), 2 * 2 * 2176) << "padded";
  EXPECT_EQ(PackedBytes(QuantType::kIQ3XXS, 16, 256), 2 * 800 + 32) << "98 bytes a row in the file";
  EXPECT_EQ(PackedBytes(QuantType::kI8, 16, 128), 0) << "no weights";
}

class DeviceBytesTest : public testing::Test {
 protected:
  void Open(const std::string& name) {
    auto file = GgufFile::Open(std::string(WARPLINE_TEST_DATA "/families/") + name + ".gguf");
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    auto spec = ModelSpec::FromGguf(*file_);
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *std::move(spec);
  }
  DeviceBytes BytesOf(LayerRange layers, DeviceBytesArgs args = {}) const {
    args.layers = layers;
    if (args.page_count == 0) args.page_count = 8;
    if (args.max_rows == 0) args.max_rows = 512;
    if (args.max_context == 0) args.max_context = 512;
    return DeviceBytesOf(*file_, spec_, args);
  }

  std::unique_ptr<GgufFile> file_;
  ModelSpec spec_;
};

TEST_F(DeviceBytesTest, WeightsOfAModelOfFloatsAreThoseOfTheFile) {
  Open("llama-plain");
  int64_t stored = 0;
  for (const GgufTensor& tensor : file_->tensors()) {
    ASSERT_EQ(tensor.type, QuantType::kF32);
    stored += static_cast<int64_t>(tensor.byte_count);
  }
  EXPECT_EQ(BytesOf({0, spec_.n_layer}).weights, stored);
}

TEST_F(DeviceBytesTest, StagesShareTheWeightsOut) {
  Open("llama-plain");
  const int64_t whole = BytesOf({0, spec_.n_layer}).weights;
  const int64_t first = BytesOf({0, 1}).weights;
  const int64_t rest = BytesOf({1, spec_.n_layer}).weights;
  const GgufTensor* const table = file_->FindTensor("token_embd.weight");
  const int64_t twice = spec_.tied_embeddings ? static_cast<int64_t>(table->byte_count) : 0;
  EXPECT_EQ(first + rest, whole + twice);
}

TEST_F(DeviceBytesTest, CachesAreThoseOfTheirPages) {
  Open("llama-plain");
  const LayerRange all{0, spec_.n_layer};
  EXPECT_EQ(BytesOf(all).caches, CacheBytesOf(spec_, all, CacheFormat::kF16, 8, 1));
}

TEST_F(DeviceBytesTest, StepsGrowWithRowsSequencesAndContext) {
  Open("qwen3moe-plain");
  const LayerRange all{0, spec_.n_layer};
  const int64_t base = BytesOf(all).step;
  EXPECT_GT(BytesOf(all, {.max_rows = 8192}).step, base + 8 * kMiB);
  EXPECT_GT(BytesOf(all, {.slot_count = 64}).step, base);
  EXPECT_GT(BytesOf(all, {.slot_count = 64, .max_context = 1 << 20}).step,
            BytesOf(all, {.slot_count = 64}).step);
  EXPECT_GT(BytesOf(all, {.format = CacheFormat::kQ8_0, .max_context = 1 << 20}).step,
            BytesOf(all, {.max_context = 1 << 20}).step)
      << "an int8 cache is read as halves";
}

}  // namespace
}  // namespace warpline
