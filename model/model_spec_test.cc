#include "model/model_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/gguf.h"

namespace warpline {
namespace {

using ::testing::IsEmpty;

std::string FamilyPath(const std::string& file) {
  return absl::StrCat(WARPLINE_TEST_DATA, "/families/", file, ".gguf");
}

// Dimensions as an independent reader of the golden files printed them.
struct GoldenCase {
  const char* file;
  Architecture architecture;
  int n_layer, n_embd, n_vocab, head_dim, n_head, n_head_kv, n_ff;
  int experts, used, n_ff_expert, n_ff_shared;
  bool tied;
};

class GoldenTest : public testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenTest, HasTheDimensionsOfItsFile) {
  const GoldenCase& golden = GetParam();
  const auto file = GgufFile::Open(FamilyPath(golden.file));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto spec = ModelSpec::FromGguf(**file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->architecture, golden.architecture);
  EXPECT_EQ(spec->n_layer, golden.n_layer);
  EXPECT_EQ(spec->n_embd, golden.n_embd);
  EXPECT_EQ(spec->n_vocab, golden.n_vocab);
  EXPECT_EQ(spec->head_dim, golden.head_dim);
  EXPECT_EQ(spec->rope.n_rot, golden.head_dim);
  EXPECT_EQ(spec->layers.size(), static_cast<size_t>(golden.n_layer));
  for (const LayerSpec& layer : spec->layers) {
    EXPECT_EQ(layer.n_head, golden.n_head);
    EXPECT_EQ(layer.n_head_kv, golden.n_head_kv);
    EXPECT_EQ(layer.n_ff, golden.n_ff);
    EXPECT_EQ(layer.is_moe, golden.experts > 0);
  }
  EXPECT_EQ(spec->moe.expert_count, golden.experts);
  EXPECT_EQ(spec->moe.used_count, golden.used);
  EXPECT_EQ(spec->moe.n_ff_expert, golden.n_ff_expert);
  EXPECT_EQ(spec->moe.n_ff_shared, golden.n_ff_shared);
  EXPECT_EQ(spec->tied_embeddings, golden.tied);
  EXPECT_THAT(spec->warnings, IsEmpty());
  EXPECT_THAT((*file)->warnings(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Families, GoldenTest,
    testing::Values(
        GoldenCase{"llama-biases", Architecture::kLlama, 2, 48, 72, 16, 3, 1, 80, 0, 0, 0, 0, true},
        GoldenCase{"llama-longrope", Architecture::kLlama, 2, 48, 72, 16, 3, 1, 80, 0, 0, 0, 0,
                   false},
        GoldenCase{"llama-mixtral", Architecture::kLlama, 2, 32, 72, 16, 2, 1, 32, 8, 2, 32, 0,
                   false},
        GoldenCase{"llama-plain", Architecture::kLlama, 2, 48, 72, 16, 3, 1, 80, 0, 0, 0, 0, false},
        GoldenCase{"llama-q4_0", Architecture::kLlama, 2, 128, 80, 32, 4, 2, 192, 0, 0, 0, 0,
                   false},
        GoldenCase{"llama-q4_1", Architecture::kLlama, 2, 128, 80, 32, 4, 2, 192, 0, 0, 0, 0,
                   false},
        GoldenCase{"llama-q8_0", Architecture::kLlama, 2, 96, 80, 32, 3, 1, 96, 0, 0, 0, 0, false},
        GoldenCase{"llama-ropefreqs", Architecture::kLlama, 2, 48, 72, 16, 3, 1, 80, 0, 0, 0, 0,
                   false},
        GoldenCase{"llama-yarn", Architecture::kLlama, 2, 48, 48, 32, 3, 1, 80, 0, 0, 0, 0, false},
        GoldenCase{"llama-zoo", Architecture::kLlama, 3, 256, 64, 64, 4, 2, 256, 0, 0, 0, 0, false},
        GoldenCase{"qwen2-outputbias", Architecture::kQwen2, 2, 48, 72, 16, 3, 1, 80, 0, 0, 0, 0,
                   false},
        GoldenCase{"qwen2-shards-00001-of-00003", Architecture::kQwen2, 4, 64, 80, 16, 4, 2, 96, 0,
                   0, 0, 0, false},
        GoldenCase{"qwen2-tied", Architecture::kQwen2, 2, 48, 72, 16, 3, 1, 80, 0, 0, 0, 0, true},
        GoldenCase{"qwen2moe-plain", Architecture::kQwen2Moe, 2, 48, 80, 16, 3, 1, 96, 8, 3, 16, 24,
                   false},
        GoldenCase{"qwen3-deep", Architecture::kQwen3, 6, 32, 72, 32, 2, 1, 48, 0, 0, 0, 0, true},
        GoldenCase{"qwen3-kmix", Architecture::kQwen3, 2, 256, 96, 32, 2, 1, 256, 0, 0, 0, 0,
                   false},
        GoldenCase{"qwen3-plain", Architecture::kQwen3, 2, 48, 72, 32, 3, 1, 80, 0, 0, 0, 0, false},
        GoldenCase{"qwen3moe-expertzoo", Architecture::kQwen3Moe, 4, 256, 96, 32, 2, 1, 96, 4, 2,
                   32, 0, false},
        GoldenCase{"qwen3moe-iq3xxs", Architecture::kQwen3Moe, 2, 256, 96, 32, 2, 1, 96, 8, 2, 64,
                   0, false},
        GoldenCase{"qwen3moe-long", Architecture::kQwen3Moe, 2, 48, 80, 32, 4, 2, 96, 8, 3, 16, 0,
                   false},
        GoldenCase{"qwen3moe-plain", Architecture::kQwen3Moe, 2, 48, 80, 32, 4, 2, 96, 6, 3, 16, 0,
                   false},
        GoldenCase{"qwen3moe-scales", Architecture::kQwen3Moe, 2, 48, 80, 32, 4, 2, 96, 6, 2, 16, 0,
                   true}));

TEST(GoldenRopeTest, ReadsEveryKindOfScaling) {
  const auto rope_of = [](const std::string& file) {
    return ModelSpec::FromGguf(**GgufFile::Open(FamilyPath(file)))->rope;
  };
  const RopeSpec plain = rope_of("llama-plain");
  EXPECT_EQ(plain.style, RopeStyle::kNorm);
  EXPECT_EQ(plain.scaling, RopeScaling::kLinear);
  EXPECT_EQ(plain.factor, 1);
  EXPECT_EQ(plain.freq_base, 10000);
  EXPECT_EQ(plain.original_context, 512);
  const RopeSpec linear = rope_of("llama-biases");  // A factor without a type.
  EXPECT_EQ(linear.scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear.factor, 4);
  const RopeSpec none = rope_of("qwen2-outputbias");  // Type none with factor 4.
  EXPECT_EQ(none.style, RopeStyle::kNeox);
  EXPECT_EQ(none.scaling, RopeScaling::kNone);
  EXPECT_EQ(none.factor, 1);
  const RopeSpec yarn = rope_of("llama-yarn");
  EXPECT_EQ(yarn.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.factor, 4);
  EXPECT_EQ(yarn.original_context, 64);
  EXPECT_FLOAT_EQ(static_cast<float>(yarn.attn_factor), 1.3f);
  EXPECT_EQ(yarn.yarn_beta_fast, 32);
  EXPECT_EQ(yarn.yarn_beta_slow, 1);
  const RopeSpec longrope = rope_of("llama-longrope");
  EXPECT_EQ(longrope.scaling, RopeScaling::kLongRope);
  EXPECT_FLOAT_EQ(static_cast<float>(longrope.attn_factor), 1.19f);
  EXPECT_EQ(longrope.original_context, 64);
  EXPECT_EQ(rope_of("llama-ropefreqs").freq_base, 500000);
}

TEST(GoldenBytesTest, AddsUpToTheTensorsOfTheFile) {
  for (const char* const name :
       {"llama-plain", "qwen3moe-scales", "qwen2-tied", "qwen2-shards-00001-of-00003"}) {
    const auto file = GgufFile::Open(FamilyPath(name));
    const auto spec = ModelSpec::FromGguf(**file);
    const ModelBytes bytes = BytesOf(*spec, **file);
    std::vector<int64_t> layers(static_cast<size_t>(spec->n_layer), 0);
    int64_t embedding = 0;
    int64_t head = 0;
    for (const GgufTensor& tensor : (*file)->tensors()) {
      const auto count = static_cast<int64_t>(tensor.byte_count);
      if (tensor.name.rfind("blk.", 0) == 0) layers[std::stoul(tensor.name.substr(4))] += count;
      if (tensor.name.rfind("token_embd", 0) == 0) embedding += count;
      if (tensor.name.rfind("output", 0) == 0) head += count;
    }
    if (spec->tied_embeddings) head += embedding;
    EXPECT_EQ(bytes.layers, layers) << name;
    EXPECT_EQ(bytes.embedding, embedding) << name;
    EXPECT_EQ(bytes.head, head) << name;
    EXPECT_EQ(bytes.shared_ends, spec->tied_embeddings ? embedding : 0) << name;
  }
}

}  // namespace
}  // namespace warpline
