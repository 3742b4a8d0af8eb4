// The metadata of gemma3 and of the architectures with recurrent layers: golden files as they are,
// and a small model with one thing wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/gguf.h"
#include "model/gguf_test_file.h"
#include "model/model_spec.h"

namespace warpline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string GgufU64s(const std::vector<uint64_t>& values) {
  std::string elements;
  for (const uint64_t value : values) elements += Bytes(value);
  return GgufArrayOf(10, values.size(), elements);
}
std::string GgufI32s(const std::vector<int32_t>& values) {
  std::string elements;
  for (const int32_t value : values) elements += Bytes(value);
  return GgufArrayOf(5, values.size(), elements);
}

void AddHyperTensors(TestGguf& file, const std::string& prefix, bool inject) {
  file.AddTensor(prefix + "norm.weight", {64});
  file.AddTensor(prefix + "down.weight", {64, 8});
  file.AddTensor(prefix + "up.weight", {8, 64});
  if (inject) file.AddTensor(prefix + "inject.weight", {64, 2});
}

// A qwen4exp of two layers, a DeltaNet with the n-gram table and sparse attention: width 32, two
// streams, two heads of 16, two key heads and four value heads of 8, a vocabulary of 4.
TestGguf HybridModel() {
  TestGguf file;
  const auto set = [&file](const std::string& key, std::string value) {
    file.Set("qwen4exp." + key, std::move(value));
  };
  file.Set("general.architecture", GgufString("qwen4exp"));
  file.Set("tokenizer.ggml.tokens", GgufStrings({"a", "b", "c", "d"}));
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, uint32_t>>{{"context_length", 128},
                                                     {"embedding_length", 32},
                                                     {"block_count", 2},
                                                     {"attention.head_count", 2},
                                                     {"attention.head_count_kv", 1},
                                                     {"rope.dimension_count", 8},
                                                     {"expert_count", 4},
                                                     {"expert_used_count", 2},
                                                     {"expert_feed_forward_length", 16},
                                                     {"expert_shared_feed_forward_length", 24},
                                                     {"ssm.conv_kernel", 4},
                                                     {"ssm.state_size", 8},
                                                     {"ssm.group_count", 2},
                                                     {"ssm.time_step_rank", 4},
                                                     {"ssm.inner_size", 32},
                                                     {"full_attention_interval", 2},
                                                     {"hyper_connection.count", 2},
                                                     {"hyper_connection.low_rank", 8},
                                                     {"attention.indexer.head_count", 3},
                                                     {"attention.indexer.key_length", 8},
                                                     {"attention.indexer.top_k", 16},
                                                     {"attention.compress_ratios", 4},
                                                     {"ple.ngram_size", 3},
                                                     {"ple.heads_per_ngram", 2},
                                                     {"ple.conv_kernel", 4},
                                                     {"ple.eos_token_id", 1},
                                                     {"embedding_length_per_layer_input", 8}}) {
    set(key, GgufU32(value));
  }
  set("attention.layer_norm_rms_epsilon", GgufF32(1e-6f));
  set("rope.dimension_sections", GgufI32s({2, 1, 1, 0}));
  set("ple.layers", GgufU32s({0}));
  set("ple.layer_multipliers", GgufU64s({23703573157769, 3, uint64_t{1} << 63}));
  set("ple.head_offsets", GgufU64s({0, 5, 12, 23}));
  set("ple.head_vocab_sizes", GgufU64s({5, 7, 11, 13}));
  file.AddTensor("token_embd.weight", {32, 4});
  file.AddTensor("output.weight", {32, 4});
  file.AddTensor("per_layer_token_embd.weight", {8, 40});
  AddHyperTensors(file, "output_hc_", false);
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    AddHyperTensors(file, layer + "hc_attn_", true);
    AddHyperTensors(file, layer + "hc_ffn_", true);
    file.AddTensor(layer + "ffn_gate_inp.weight", {32, 4});
    file.AddTensor(layer + "ffn_gate_exps.weight", {32, 16, 4});
    file.AddTensor(layer + "ffn_up_exps.weight", {32, 16, 4});
    file.AddTensor(layer + "ffn_down_exps.weight", {16, 32, 4});
    file.AddTensor(layer + "ffn_gate_inp_shexp.weight", {32, 1});
    file.AddTensor(layer + "ffn_gate_shexp.weight", {32, 24});
    file.AddTensor(layer + "ffn_up_shexp.weight", {32, 24});
    file.AddTensor(layer + "ffn_down_shexp.weight", {24, 32});
  }
  file.AddTensor("blk.0.attn_qkv.weight", {32, 64});
  file.AddTensor("blk.0.attn_gate.weight", {32, 32});
  file.AddTensor("blk.0.ssm_beta.weight", {32, 4});
  file.AddTensor("blk.0.ssm_alpha.weight", {32, 4});
  file.AddTensor("blk.0.ssm_conv1d.weight", {4, 64});
  file.AddTensor("blk.0.ssm_dt.bias", {4});
  file.AddTensor("blk.0.ssm_a", {4});
  file.AddTensor("blk.0.ssm_norm.weight", {8});
  file.AddTensor("blk.0.ssm_out.weight", {32, 32});
  file.AddTensor("blk.0.ple_key.weight", {32, 64});
  file.AddTensor("blk.0.ple_value.weight", {32, 32});
  file.AddTensor("blk.0.ple_norm_key.weight", {64});
  file.AddTensor("blk.0.ple_norm_query.weight", {64});
  file.AddTensor("blk.0.ple_norm_conv.weight", {64});
  file.AddTensor("blk.0.ple_conv1d.weight", {4, 64});
  file.AddTensor("blk.1.attn_q.weight", {32, 64});
  file.AddTensor("blk.1.attn_k.weight", {32, 16});
  file.AddTensor("blk.1.attn_v.weight", {32, 16});
  file.AddTensor("blk.1.attn_output.weight", {32, 32});
  file.AddTensor("blk.1.attn_q_norm.weight", {16});
  file.AddTensor("blk.1.attn_k_norm.weight", {16});
  file.AddTensor("blk.1.indexer.q_proj.weight", {32, 24});
  file.AddTensor("blk.1.indexer.k_proj.weight", {32, 8});
  file.AddTensor("blk.1.indexer.q_norm.weight", {8});
  file.AddTensor("blk.1.indexer.k_norm.weight", {8});
  return file;
}

absl::StatusOr<ModelSpec> SpecOf(const TestGguf& made) {
  const TestFolder folder;
  const auto file = GgufFile::Open(folder.Write("model.gguf", made.Build()));
  if (!file.ok()) return file.status();
  return ModelSpec::FromGguf(**file);
}

std::string Refusal(const std::function<void(TestGguf&)>& change) {
  TestGguf made = HybridModel();
  change(made);
  const absl::Status status = SpecOf(made).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}
std::string KeyRefusal(const std::string& key, const std::string& value) {
  return Refusal([&](TestGguf& file) { file.Set("qwen4exp." + key, value); });
}

TEST(HybridSpecTest, ReadsAllOfAWholeModel) {
  const auto spec = SpecOf(HybridModel());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->warnings, IsEmpty());
  EXPECT_EQ(spec->residual_width, 64);
  EXPECT_EQ(spec->hyper.low_rank, 8);
  EXPECT_TRUE(spec->has_attention_gate);
  EXPECT_EQ(spec->layers[0].kind, LayerKind::kDeltaNet);
  EXPECT_EQ(spec->layers[1].kind, LayerKind::kAttention);
  EXPECT_EQ(spec->layers[0].compress_ratio, 0);
  EXPECT_EQ(spec->layers[1].compress_ratio, 4);
  EXPECT_EQ(spec->delta_net.qkv_width(), 64);
  EXPECT_TRUE(spec->delta_net.sigmoid_gate);
  EXPECT_FALSE(spec->delta_net.grouped_heads);
  EXPECT_EQ(spec->indexer.token_budget, 16);
  EXPECT_THAT(spec->rope.sections, ElementsAre(2, 1, 1, 0));
  EXPECT_EQ(spec->ple.layer, 0);
  EXPECT_EQ(spec->ple.head_count(), 4);
  EXPECT_EQ(spec->ple.image_token_id, 1);
  EXPECT_EQ(spec->ple.row_count, 40);
  EXPECT_THAT(spec->ple.multipliers, ElementsAre(23703573157769u, 3u, uint64_t{1} << 63));
}

TEST(HybridSpecTest, NeedsEveryTensorInItsShape) {
  for (const TestTensor& tensor : HybridModel().tensors) {
    if (tensor.name == "output.weight") continue;  // the embedding serves
    EXPECT_THAT(Refusal([&](TestGguf& file) { file.RemoveTensor(tensor.name); }),
                HasSubstr(tensor.name));
    if (tensor.name == "per_layer_token_embd.weight") continue;  // may have more rows
    EXPECT_THAT(Refusal([&](TestGguf& file) {
                  std::vector<int64_t> dims = tensor.dims;
                  dims.back() += 1;
                  file.ReplaceTensor(tensor.name, dims);
                }),
                HasSubstr(tensor.name));
  }
}

TEST(HybridSpecTest, TakesGammasWithARowForEachStreamAndFusedExperts) {
  TestGguf file = HybridModel();
  for (const char* const name : {"output_hc_norm.weight", "blk.0.hc_attn_norm.weight",
                                 "blk.1.hc_ffn_norm.weight", "blk.0.ple_norm_conv.weight"}) {
    file.ReplaceTensor(name, {32, 2});
  }
  file.RemoveTensor("blk.1.ffn_gate_exps.weight");
  file.RemoveTensor("blk.1.ffn_up_exps.weight");
  file.AddTensor("blk.1.ffn_gate_up_exps.weight", {32, 32, 4});
  EXPECT_TRUE(SpecOf(file).ok()) << SpecOf(file).status();
}

TEST(HybridSpecTest, RefusesWrongDimensions) {
  EXPECT_THAT(KeyRefusal("ssm.conv_kernel", GgufU32(17)), HasSubstr("ssm.conv_kernel is 17"));
  EXPECT_THAT(KeyRefusal("ssm.conv_kernel", GgufU32(0)), HasSubstr("ssm.conv_kernel is 0"));
  EXPECT_THAT(KeyRefusal("ssm.time_step_rank", GgufU32(5)), HasSubstr("not a multiple of 2"));
  EXPECT_THAT(KeyRefusal("ssm.inner_size", GgufU32(33)), HasSubstr("must be 32"));
  EXPECT_THAT(KeyRefusal("full_attention_interval", GgufU32(0)), HasSubstr("is 0"));
  EXPECT_THAT(KeyRefusal("hyper_connection.count", GgufU32(1)), HasSubstr("must be 2 to 16"));
  EXPECT_THAT(KeyRefusal("hyper_connection.count", GgufU32(17)), HasSubstr("must be 2 to 16"));
  EXPECT_THAT(KeyRefusal("hyper_connection.low_rank", GgufU32(0)), HasSubstr("low_rank is 0"));
  EXPECT_THAT(KeyRefusal("attention.indexer.key_length", GgufU32(7)),
              HasSubstr("less than the 8 rotated values"));
  EXPECT_THAT(KeyRefusal("attention.compress_ratios", GgufU32(17)), HasSubstr("must be 0 to 16"));
  EXPECT_THAT(KeyRefusal("attention.compress_ratios", GgufU32s({4})), HasSubstr("has 1 elements"));
  EXPECT_THAT(KeyRefusal("rope.dimension_sections", GgufI32s({0, 0, 0, 0})), HasSubstr("sum of 0"));
  EXPECT_THAT(KeyRefusal("rope.dimension_sections", GgufI32s({2, -1, 1, 0})), HasSubstr("is -1"));
  EXPECT_THAT(KeyRefusal("rope.dimension_sections", GgufI32s({2, 1})), HasSubstr("must have 4"));
}

TEST(HybridSpecTest, RefusesTablesThatIdsCouldLeave) {
  EXPECT_THAT(KeyRefusal("ple.layers", GgufU32s({0, 1})), HasSubstr("one is supported"));
  EXPECT_THAT(KeyRefusal("ple.layers", GgufU32s({2})), HasSubstr("must be 0 to 1"));
  EXPECT_THAT(KeyRefusal("ple.layers", GgufU32s({1})), HasSubstr("no recurrent layer"));
  EXPECT_THAT(KeyRefusal("ple.ngram_size", GgufU32(9)), HasSubstr("must be 2 to 8"));
  EXPECT_THAT(KeyRefusal("ple.heads_per_ngram", GgufU32(33)), HasSubstr("must be 1 to 32"));
  EXPECT_THAT(KeyRefusal("embedding_length_per_layer_input", GgufU32(9)), HasSubstr("36 values"));
  EXPECT_THAT(KeyRefusal("ple.layer_multipliers", GgufU64s({1, 2})), HasSubstr("must have 3"));
  EXPECT_THAT(KeyRefusal("ple.head_offsets", GgufU64s({0, 5, 12})), HasSubstr("must have 4"));
  EXPECT_THAT(KeyRefusal("ple.head_vocab_sizes", GgufU64s({5, 7, 0, 13})), HasSubstr("[2] is 0"));
  EXPECT_THAT(KeyRefusal("ple.head_offsets", GgufU64s({0, 5, 12, 28})),
              AllOf(HasSubstr("has 40 rows"), HasSubstr("reach up to 41")));
  for (const uint64_t offset : {uint64_t{1} << 31, ~uint64_t{0} - 3}) {
    EXPECT_THAT(KeyRefusal("ple.head_offsets", GgufU64s({0, 5, 12, offset})),
                HasSubstr("exceeds 2147483647"));
  }
  TestGguf without = HybridModel();
  without.Set("qwen4exp.ple.layers", GgufU32s({}));
  without.Remove("qwen4exp.ple.ngram_size");
  const auto spec = SpecOf(without);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->ple.present());
}

// What the golden files say, as an independent reader printed it.
ModelSpec GoldenSpec(const std::string& name, ModelBytes* bytes = nullptr) {
  const auto file = GgufFile::Open(absl::StrCat(WARPLINE_TEST_DATA, "/families/", name, ".gguf"));
  EXPECT_TRUE(file.ok()) << file.status();
  const auto spec = ModelSpec::FromGguf(**file);
  EXPECT_TRUE(spec.ok()) << spec.status();
  if (bytes != nullptr) *bytes = BytesOf(*spec, **file);
  return *spec;
}

TEST(HybridSpecTest, IgnoresDraftBlocksWithOneLine) {
  for (const auto& [name, layers] : std::vector<std::pair<std::string, int>>{{"qwen35-plain", 4},
                                                                             {"qwen35moe-fused", 3},
                                                                             {"qwen3next-plain", 3},
                                                                             {"qwen4exp-mtp", 2}}) {
    ModelBytes bytes;
    const ModelSpec spec = GoldenSpec(name, &bytes);
    EXPECT_EQ(spec.n_layer, layers) << name;
    EXPECT_EQ(static_cast<int>(bytes.layers.size()), layers) << name;
    EXPECT_THAT(spec.warnings, ElementsAre(HasSubstr("1 draft block (MTP)"))) << name;
  }
  EXPECT_THAT(Refusal([](TestGguf& file) {
                file.Set("qwen4exp.nextn_predict_layers", GgufU32(1));
                for (const TestTensor& tensor : HybridModel().tensors) {
                  if (tensor.name.rfind("blk.0.", 0) == 0) file.RemoveTensor(tensor.name);
                }
              }),
              HasSubstr("draft blocks alone"));
}

TEST(HybridSpecTest, ReadsTheLayersOfGoldenModels) {
  const auto kinds = [](const ModelSpec& spec) {
    std::string text;
    for (const LayerSpec& layer : spec.layers) {
      text += layer.kind == LayerKind::kDeltaNet           ? 'd'
              : layer.kind == LayerKind::kSlidingAttention ? 's'
                                                           : 'a';
    }
    return text;
  };
  EXPECT_EQ(kinds(GoldenSpec("qwen35-plain")), "ddda");
  EXPECT_EQ(kinds(GoldenSpec("qwen35moe-fused")), "dad");  // an array, not the interval
  EXPECT_EQ(kinds(GoldenSpec("qwen4exp-tied")), "dad");
  EXPECT_TRUE(GoldenSpec("qwen3next-legacy").delta_net.grouped_heads);
  const ModelSpec gemma = GoldenSpec("gemma3-window");
  EXPECT_EQ(kinds(gemma), "sssssas");
  EXPECT_EQ(gemma.window, 8);
  EXPECT_EQ(gemma.rope_local.freq_base, 5000);
  EXPECT_FLOAT_EQ(static_cast<float>(gemma.embedding_factor), 5.656854f);
  const ModelSpec capped = GoldenSpec("gemma3-softcap");
  EXPECT_EQ(kinds(capped), "aaa");
  EXPECT_EQ(capped.logit_soft_cap, 5);
  EXPECT_EQ(capped.rope.factor, 8);
}

// The table is on disk; unused indexers are not loaded.
TEST(HybridSpecTest, CountsTheTableApart) {
  ModelBytes bytes;
  const ModelSpec spec = GoldenSpec("qwen4exp-ple", &bytes);
  EXPECT_EQ(bytes.ple_table, spec.ple.row_count * 4 * 4);
  const int64_t indexer = (32 * 12 * 16 + 32 * 16 + 16 + 16) * 4;
  ModelBytes sparse;
  GoldenSpec("qwen4exp-qsa-r4", &sparse);
  // Of the same shape otherwise, both are the last of three layers.
  EXPECT_EQ(sparse.layers[2], bytes.layers[2] + indexer);
}

}  // namespace
}  // namespace warpline
