#include "model/row_widths.h"

#include <gtest/gtest.h>

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

TEST(RowWidthsTest, EachStageNeedsWhatItsLayersUse) {
  const ModelSpec spec = WideModel();
  // residual, normed, branch, inject; qkv and conv 10,240, heads and gate 6,144, beta.
  constexpr int64_t kDelta = 10240 + 2560 + 2560 + 4 + 2 * 10240 + 2 * 6144 + 96;
  EXPECT_EQ(RowWidthsOf(spec, {0, 1}, 262144).sum(), kDelta);
  EXPECT_EQ(RowWidthsOf(spec, {0, 2}, 262144).sum(), kDelta + 2560);
  // q, k and v of attention are 7,168 wide; an indexer chooses 512 blocks.
  constexpr int64_t kAttention = 10240 + 2560 + 2560 + 4 + 7168 + 2 * 6144 + 5 * 128 + 513;
  EXPECT_EQ(RowWidthsOf(spec, {3, 4}, 262144).sum(), kAttention);
  EXPECT_EQ(RowWidthsOf(spec, {2, 4}, 262144).sum(), kDelta + 5 * 128 + 513);
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
  EXPECT_EQ(RowWidthsOf(spec, {0, 2}, 512).sum(), 64 + 64 + 128 + 64);
  // The first stage hands on in three slots; the last one picks rows for the head.
  EXPECT_EQ(StepBytesOf(spec, {0, 1}, 7, 512), 7 * (320 + 96 + 3 * 64) * 4);
  EXPECT_EQ(StepBytesOf(spec, {1, 2}, 7, 512), (7 * (320 + 96 + 64) + 64 * 100) * 4);
}

TEST(RowWidthsTest, ExpertsWorkOnAtMost512Rows) {
  const ModelSpec spec = WideModel();
  constexpr int64_t kExperts = 512 + 10 * (2 * 2560 + 640) + 2560 + 640 + 2560;
  const int64_t width = RowWidthsOf(spec, {2, 4}, 262144).sum() + 3 * 10240;
  EXPECT_EQ(StepBytesOf(spec, {2, 4}, 8192, 262144), (8192 * width + 512 * kExperts) * 4);
  EXPECT_EQ(StepBytesOf(spec, {2, 4}, 100, 262144), 100 * (width + kExperts) * 4);
}

}  // namespace
}  // namespace warpline
