#include "model/row_widths.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace warpline {
namespace {

// The released qwen4exp.
ModelSpec WideModel() {
  ModelSpec spec;
  spec.architecture = Architecture::kQwen4Exp;
  spec.n_layer = 48;
  spec.n_embd = 2560;
  spec.n_vocab = 248320;
  spec.residual_width = 4 * 2560;
  spec.head_dim = 256;
  spec.has_attention_gate = true;
  spec.delta_net = {.conv_kernel = 4, .head_dim = 128, .n_head_key = 16, .n_head_value = 48};
  spec.hyper = {.stream_count = 4, .low_rank = 320};
  spec.indexer = {.n_head = 4, .head_dim = 128, .token_budget = 2048};
  spec.moe = {.expert_count = 512, .used_count = 10, .n_ff_expert = 640, .n_ff_shared = 640};
  spec.ple.layer = 1;
  for (int layer = 0; layer < spec.n_layer; ++layer) {
    const bool attends = layer % 4 == 3;
    spec.layers.push_back({.kind = attends ? LayerKind::kAttention : LayerKind::kDeltaNet,
                           .n_head = 24,
                           .n_head_kv = 2,
                           .is_moe = true,
                           .compress_ratio = attends ? 4 : 0});
  }
  return spec;
}

int64_t Sum(const RowWidths& widths) {
  int64_t sum = 0;
  for (const int64_t width : widths.all()) sum += width;
  return sum;
}

TEST(RowWidthsTest, EachStageNeedsWhatItsLayersUse) {
  const ModelSpec spec = WideModel();
  // residual, normed, branch, inject; qkv and conv 10,240, heads and gate 6,144, beta.
  constexpr int64_t kDelta = 10240 + 2560 + 2560 + 4 + 2 * 10240 + 2 * 6144 + 96;
  EXPECT_EQ(Sum(RowWidthsOf(spec, {0, 1}, 262144)), kDelta);
  EXPECT_EQ(Sum(RowWidthsOf(spec, {0, 2}, 262144)), kDelta + 2560);
  // q, k and v of attention are 7,168 wide; an indexer chooses 512 blocks.
  constexpr int64_t kAttention = 10240 + 2560 + 2560 + 4 + 7168 + 2 * 6144 + 5 * 128 + 513;
  EXPECT_EQ(Sum(RowWidthsOf(spec, {3, 4}, 262144)), kAttention);
  EXPECT_EQ(Sum(RowWidthsOf(spec, {2, 4}, 262144)), kDelta + 5 * 128 + 513);
}

TEST(RowWidthsTest, AShortContextHasFewBlocks) {
  EXPECT_EQ(RowWidthsOf(WideModel(), {3, 4}, 1000).selection, 1 + 251);
}

TEST(RowWidthsTest, APlainModelNeedsLittle) {
  ModelSpec spec;
  spec.n_layer = 2;
  spec.n_embd = spec.residual_width = 64;
  spec.n_vocab = 100;
  spec.head_dim = 16;
  spec.layers.assign(2, {.n_head = 4, .n_head_kv = 2, .n_ff = 96});
  EXPECT_EQ(Sum(RowWidthsOf(spec, {0, 2}, 512)), 64 + 64 + 128 + 64);
  // Beside the values, a row has 24 bytes in lists. The first stage hands on in three slots; the
  // last one picks rows for the head and keeps 32 rows of logits twice.
  EXPECT_EQ(StepBytesOf(spec, {0, 1}, 7, 512), 7 * ((320 + 96 + 3 * 64) * 4 + 24));
  EXPECT_EQ(StepBytesOf(spec, {1, 2}, 7, 512), 7 * ((320 + 96 + 64) * 4 + 24) + 64 * 100 * 4);
  spec.rope.n_rot = 16;  // a cosine and a sine for each rotated value
  EXPECT_EQ(StepBytesOf(spec, {0, 1}, 7, 512), 7 * ((320 + 96 + 3 * 64 + 32) * 4 + 24));
}

// Bytes of buffers that are allocated one by one, from their numbers of values.
int64_t InHugePages(std::initializer_list<int64_t> value_counts) {
  constexpr int64_t kHuge = 2 << 20;
  int64_t bytes = 0;
  for (const int64_t count : value_counts) {
    const int64_t exact = count * 4;
    bytes += exact < kHuge ? exact : exact + (kHuge - exact % kHuge) % kHuge;
  }
  return bytes;
}

TEST(RowWidthsTest, ExpertsWorkOnAtMost512RowsAndStreamsOn256) {
  ModelSpec spec = WideModel();
  spec.rope.n_rot = 64;
  const auto step_bytes = [](int64_t rows, int64_t expert_rows, int64_t wide_rows) {
    const int64_t pairs = expert_rows * 10;
    return InHugePages({// Residual, normed, branch, q/k/v, heads, gate, convolved, beta.
                        rows * 10240, rows * 2560, rows * 2560, rows * 10240, rows * 6144,
                        rows * 6144, rows * 10240, rows * 96,
                        // Indexer, its choice, inject, rotations.
                        rows * 640, rows * 513, rows * 4, rows * 128,
                        // Experts and the shared one.
                        expert_rows * 512, pairs * 2560, pairs * 640, pairs * 2560,
                        expert_rows * 2560, expert_rows * 640, expert_rows * 2560,
                        // Streams, normed and gates, and what lies between.
                        wide_rows * 10240, wide_rows * 10240, wide_rows * 320}) +
           3 * rows * 10240 * 4 + rows * 24 + pairs * 24;
  };
  EXPECT_EQ(StepBytesOf(spec, {2, 4}, 8192, 262144), step_bytes(8192, 512, 256));
  EXPECT_EQ(StepBytesOf(spec, {2, 4}, 100, 262144), step_bytes(100, 100, 100));
}

TEST(RowWidthsTest, TheStageOfTheNgramTableHoldsItsRowsTwiceAndAConvolution) {
  const ModelSpec spec = WideModel();
  // Small enough for exact buffers; n-grams make `low` 2,560 wide instead of 320.
  constexpr int64_t kRows = 40;
  EXPECT_EQ(StepBytesOf(spec, {1, 3}, kRows, 262144) - StepBytesOf(spec, {2, 3}, kRows, 262144),
            kRows * (2 * 2560 + 10240 + 2560 - 320) * 4);
}

TEST(RowWidthsTest, OfTheRoomForRowsOfTheHeadOneHugePageIsUsed) {
  ModelSpec spec;
  spec.n_layer = 1;
  spec.n_embd = spec.residual_width = 1024;
  spec.n_vocab = 10;
  spec.layers.assign(1, {.kind = LayerKind::kDeltaNet});
  // Residual and normed; 32 rows of logits twice.
  EXPECT_EQ(StepBytesOf(spec, {0, 1}, 10000, 512),
            InHugePages({10000 * 1024, 10000 * 1024}) + (2 << 20) + 2 * 32 * 10 * 4 + 10000 * 24);
}

}  // namespace
}  // namespace warpline
