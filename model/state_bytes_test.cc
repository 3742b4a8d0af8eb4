#include "model/state_bytes.h"

#include <gtest/gtest.h>

namespace warpline {
namespace {

// The released qwen4exp: the figures of its specification, for 262144 tokens.
ModelSpec ReleasedModel() {
  ModelSpec spec;
  spec.n_layer = 48;
  spec.n_embd = 2560;
  spec.residual_width = 4 * 2560;
  spec.head_dim = 256;
  spec.delta_net = {.conv_kernel = 4, .head_dim = 128, .n_head_key = 16, .n_head_value = 48};
  spec.hyper.stream_count = 4;
  spec.indexer = {.n_head = 4, .head_dim = 128, .token_budget = 2048};
  spec.ple = {.layer = 1, .ngram_size = 3, .heads_per_ngram = 8, .conv_kernel = 4};
  for (int layer = 0; layer < spec.n_layer; ++layer) {
    const bool attends = layer % 4 == 3;
    spec.layers.push_back({.kind = attends ? LayerKind::kAttention : LayerKind::kDeltaNet,
                           .n_head = 24,
                           .n_head_kv = 2,
                           .compress_ratio = attends ? 4 : 0});
  }
  return spec;
}

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kPages = 262144 / 64;

TEST(StateBytesTest, PagesHoldKeysValuesAndPooledKeys) {
  const ModelSpec spec = ReleasedModel();
  const LayerRange all{.begin = 0, .end = 48};
  EXPECT_EQ(StateBytesOf(spec, all, CacheFormat::kF16).page * kPages, (6 * 1024 + 384) * kMiB);
  // Int8 with a half for each 32 values: 34 bytes where halves take 64.
  EXPECT_EQ(StateBytesOf(spec, all, CacheFormat::kQ8_0).page * kPages,
            6 * 1024 * kMiB * 34 / 64 + 384 * kMiB);
}

TEST(StateBytesTest, SlotsHoldWhatDoesNotGrow) {
  const ModelSpec spec = ReleasedModel();
  const int64_t memory = 108 * kMiB;
  const int64_t columns = 36 * 3 * 10240 * 4;
  const int64_t ngrams = 9 * 10240 * 4;
  const int64_t raw_keys = 12 * 3 * 128 * 4;
  EXPECT_EQ(StateBytesOf(spec, {0, 48}, CacheFormat::kF16).slot,
            memory + columns + ngrams + raw_keys);
}

TEST(StateBytesTest, EachStageCountsItsLayers) {
  const ModelSpec spec = ReleasedModel();
  EXPECT_EQ(StateBytesOf(spec, {0, 1}, CacheFormat::kF16).slot, (3 * 10240 + 48 * 128 * 128) * 4);
  EXPECT_EQ(StateBytesOf(spec, {1, 2}, CacheFormat::kF16).slot,
            (3 * 10240 + 48 * 128 * 128 + 9 * 10240) * 4);
  EXPECT_EQ(StateBytesOf(spec, {0, 3}, CacheFormat::kF16).page, 0);
  EXPECT_EQ(StateBytesOf(spec, {3, 4}, CacheFormat::kF32).page,
            64 * 2 * 2 * 256 * 4 + 16 * 128 * 4);
}

TEST(StateBytesTest, SmallHeadsHaveMoreScales) {
  ModelSpec spec;
  spec.head_dim = 48;
  spec.layers = {{.n_head_kv = 3}};
  EXPECT_EQ(StateBytesOf(spec, {0, 1}, CacheFormat::kQ8_0).page, 64 * 2 * 3 * (48 + 3 * 2));
}

TEST(StateBytesTest, LargeBuffersComeInWholeHugePages) {
  const ModelSpec spec = ReleasedModel();
  // Keys and values of 100 pages: 13,107,200 bytes, 6.25 huge pages. Pooled keys: 819,200 bytes.
  // Three slots of raw keys. The last stage keeps an id for each token, in a
  // list of up to twice their size.
  constexpr int64_t kRawKeys = 3 * 3 * 128 * 4;
  EXPECT_EQ(CacheBytesOf(spec, {3, 4}, CacheFormat::kF16, 100, 3),
            7 * 2 * kMiB + 819200 + kRawKeys);
  EXPECT_EQ(CacheBytesOf(spec, {47, 48}, CacheFormat::kF16, 100, 3),
            7 * 2 * kMiB + 819200 + kRawKeys + 100 * 64 * 8);
  // Memory of 3 MiB and columns of 120 KiB for each slot.
  EXPECT_EQ(CacheBytesOf(spec, {0, 1}, CacheFormat::kF16, 100, 3), 10 * kMiB + 3 * 3 * 10240 * 4);
}

}  // namespace
}  // namespace warpline
