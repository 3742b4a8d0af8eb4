#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
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

const char* const kArchitectures[] = {"llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe"};

absl::StatusOr<ModelSpec> SpecOf(const TestGguf& made) {
  const TestFolder folder;
  const auto file = GgufFile::Open(folder.Write("model.gguf", made.Build()));
  if (!file.ok()) return file.status();
  return ModelSpec::FromGguf(**file);
}

// The message that refuses the model after `change`; a failure of the test when it is accepted.
std::string Refusal(TestGguf made, const std::function<void(TestGguf&)>& change) {
  change(made);
  const absl::Status status = SpecOf(made).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.gguf: "));
  return std::string(status.message());
}
std::string KeyRefusal(const std::string& arch, const std::string& key, const std::string& value) {
  return Refusal(TestModel(arch), [&](TestGguf& file) { file.Set(arch + "." + key, value); });
}

TEST(ModelSpecTest, AcceptsAWholeModelOfEveryArchitecture) {
  for (const std::string arch : kArchitectures) {
    const auto spec = SpecOf(TestModel(arch));
    ASSERT_TRUE(spec.ok()) << arch << ": " << spec.status();
    EXPECT_EQ(spec->architecture_name, arch);
    EXPECT_EQ(spec->name, "model.gguf");
    EXPECT_EQ(spec->n_vocab, 4);
    EXPECT_EQ(spec->head_dim, 16);
    EXPECT_EQ(spec->context_length, 128);
    EXPECT_FLOAT_EQ(static_cast<float>(spec->rms_eps), 1e-5f);
    EXPECT_EQ(spec->has_qk_norm, arch == "qwen3" || arch == "qwen3moe");
    EXPECT_EQ(spec->moe.renormalise, arch == "qwen3moe");
    EXPECT_EQ(spec->moe.n_ff_expert, arch == "qwen2moe" || arch == "qwen3moe" ? 32 : 0);  // F / k
    EXPECT_EQ(spec->moe.n_ff_shared, arch == "qwen2moe" ? 64 : 0);                        // F
    EXPECT_THAT(spec->warnings, IsEmpty());
  }
}

TEST(ModelSpecTest, RefusesEveryOtherArchitecture) {
  for (const std::string arch : {"gemma2", "qwen3vl", "deepseek2", "clip", ""}) {
    const std::string message = Refusal(TestModel("llama"), [&](TestGguf& file) {
      file.Set("general.architecture", GgufString(arch));
    });
    EXPECT_THAT(message,
                AllOf(HasSubstr(absl::StrCat("\"", arch, "\"")),
                      HasSubstr("known are llama, qwen2, qwen3, qwen2moe, qwen3moe, gemma3, "
                                "qwen3next, qwen35, qwen35moe, qwen4exp")));
  }
  EXPECT_THAT(Refusal(TestModel("llama"), [](TestGguf& f) { f.Remove("general.architecture"); }),
              HasSubstr("key general.architecture is missing"));
  EXPECT_THAT(
      Refusal(TestModel("llama"), [](TestGguf& f) { f.Set("general.architecture", GgufU32(3)); }),
      HasSubstr("key general.architecture is u32 3, wanted a string"));
}

TEST(ModelSpecTest, NamesEachRequiredKeyThatIsMissing) {
  for (const std::string arch : kArchitectures) {
    for (const char* const suffix : {"context_length", "embedding_length", "block_count",
                                     "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
      const std::string key = absl::StrCat(arch, ".", suffix);
      EXPECT_THAT(Refusal(TestModel(arch), [&](TestGguf& file) { file.Remove(key); }),
                  HasSubstr(absl::StrCat("key ", key, " is missing")));
    }
  }
  for (const std::string arch : {"qwen2moe", "qwen3moe"}) {
    EXPECT_THAT(
        Refusal(TestModel(arch), [&](TestGguf& file) { file.Remove(arch + ".expert_used_count"); }),
        HasSubstr("expert_used_count is missing"));
    EXPECT_THAT(
        Refusal(TestModel(arch), [&](TestGguf& file) { file.Remove(arch + ".expert_count"); }),
        HasSubstr("expert_count"));
  }
}

TEST(ModelSpecTest, RefusesValuesOutOfRange) {
  const auto refusal = [](const std::string& key, const std::string& value) {
    return KeyRefusal("llama", key, value);
  };
  EXPECT_THAT(refusal("block_count", GgufU32(0)),
              HasSubstr("llama.block_count is 0, must be 1 to 512"));
  EXPECT_THAT(refusal("block_count", GgufU32(1u << 31)), HasSubstr("is 2147483648"));
  EXPECT_THAT(refusal("block_count", GgufString("1")),
              HasSubstr("llama.block_count is string \"1\""));
  EXPECT_THAT(refusal("context_length", GgufU32(0)), HasSubstr("llama.context_length is 0"));
  EXPECT_THAT(refusal("embedding_length", GgufI32(-32)),
              HasSubstr("llama.embedding_length is -32"));
  EXPECT_THAT(refusal("attention.head_count", GgufU32(0)),
              HasSubstr("llama.attention.head_count is 0"));
  EXPECT_THAT(refusal("attention.head_count", GgufU32(3)),
              AllOf(HasSubstr("embedding_length is 32"), HasSubstr("multiple of 3"),
                    HasSubstr("key_length")));
  EXPECT_THAT(refusal("attention.head_count_kv", GgufU32(0)), HasSubstr("head_count_kv is 0"));
  EXPECT_THAT(refusal("attention.head_count_kv", GgufU32(3)),
              AllOf(HasSubstr("head_count is 2 in layer 0"), HasSubstr("multiple of 3")));
  EXPECT_THAT(refusal("attention.key_length", GgufU32(32)),
              AllOf(HasSubstr("value_length"), HasSubstr("is 16"), HasSubstr("which is 32")));
  EXPECT_THAT(refusal("attention.key_length", GgufU32(0)), HasSubstr("key_length is 0"));
  EXPECT_THAT(refusal("feed_forward_length", GgufU32(0)), HasSubstr("feed_forward_length is 0"));
  EXPECT_THAT(refusal("rope.dimension_count", GgufU32(18)),
              HasSubstr("rope.dimension_count is 18, must be 1 to 16"));
  EXPECT_THAT(refusal("rope.dimension_count", GgufU32(0)), HasSubstr("rope.dimension_count is 0"));
  EXPECT_THAT(refusal("rope.dimension_count", GgufU32(15)), HasSubstr("is 15, must be even"));
  EXPECT_THAT(refusal("rope.scaling.type", GgufString("su\nper")),
              HasSubstr("\"su\\x0Aper\", must be none"));
  EXPECT_THAT(refusal("rope.scaling.original_context_length", GgufU32(0)),
              HasSubstr("original_context_length is 0"));
  EXPECT_THAT(refusal("vocab_size", GgufU32(0)), HasSubstr("llama.vocab_size is 0"));
}

TEST(ModelSpecTest, RefusesFloatsThatAreNotPositiveAndFinite) {
  const float bad[] = {std::nanf(""), std::numeric_limits<float>::infinity(), -1.0f};
  for (const char* const suffix :
       {"attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor",
        "rope.scale_linear", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
        "rope.scaling.yarn_log_multiplier"}) {
    for (const float value : bad) {
      EXPECT_THAT(KeyRefusal("llama", suffix, GgufF32(value)),
                  HasSubstr(absl::StrCat("key llama.", suffix, " is ")));
    }
    EXPECT_THAT(KeyRefusal("llama", suffix, GgufU32(1)),
                HasSubstr(absl::StrCat("llama.", suffix, " is u32 1")));
  }
  for (const char* const suffix : {"attention.layer_norm_rms_epsilon", "rope.freq_base"}) {
    EXPECT_THAT(KeyRefusal("llama", suffix, GgufF32(0)),
                HasSubstr(absl::StrCat("llama.", suffix, " is 0")));
  }
  EXPECT_THAT(Refusal(TestModel("llama"),
                      [](TestGguf& file) {
                        file.Set("llama.rope.scaling.type", GgufString("yarn"));
                        file.Set("llama.rope.freq_base", GgufF32(1));
                      }),
              HasSubstr("rope.freq_base is 1, must be above 1"));
}

TEST(ModelSpecTest, ReadsRopeKeysUnderOldAndNewNames) {
  TestGguf made = TestModel("qwen2");
  made.Set("qwen2.rope.scale_linear", GgufF32(8));
  made.Set("qwen2.rope.dimension_count", GgufU32(8));
  EXPECT_EQ(SpecOf(made)->rope.factor, 8);
  EXPECT_EQ(SpecOf(made)->rope.n_rot, 8);
  made.Set("qwen2.rope.scaling.factor", GgufF32(2));
  EXPECT_EQ(SpecOf(made)->rope.factor, 2);
  made.Set("qwen2.rope.scaling.factor", GgufF32(0));
  EXPECT_EQ(SpecOf(made)->rope.factor, 1);
  made.Set("qwen2.rope.scaling.attn_factor", GgufF32(3));
  EXPECT_EQ(SpecOf(made)->rope.attn_factor, 3);
  made.Set("qwen2.rope.scaling.yarn_attn_factor", GgufF32(5));
  EXPECT_EQ(SpecOf(made)->rope.attn_factor, 5);
  made.Set("qwen2.rope.scaling.yarn_beta_fast", GgufF32(16));
  made.Set("qwen2.rope.scaling.yarn_beta_slow", GgufF32(2));
  made.Set("qwen2.rope.scaling.yarn_log_multiplier", GgufF32(0.5f));
  EXPECT_EQ(SpecOf(made)->rope.yarn_beta_fast, 16);
  EXPECT_EQ(SpecOf(made)->rope.yarn_beta_slow, 2);
  EXPECT_EQ(SpecOf(made)->rope.yarn_log_multiplier, 0.5);
}

TEST(ModelSpecTest, ReadsArraysWithAValueForEachLayer) {
  TestGguf made = TestModel("llama");
  made.Set("llama.block_count", GgufU32(2));
  made.Set("llama.attention.head_count", GgufU32s({2, 1, 9}));
  made.Set("llama.attention.head_count_kv", GgufU32s({1, 1}));
  made.Set("llama.feed_forward_length", GgufU32s({64, 96}));
  for (const TestTensor& tensor : std::vector<TestTensor>(made.tensors)) {
    if (tensor.name.rfind("blk.0", 0) == 0)
      made.AddTensor("blk.1" + tensor.name.substr(5), tensor.dims);
  }
  made.ReplaceTensor("blk.1.attn_q.weight", {32, 16});
  made.ReplaceTensor("blk.1.attn_output.weight", {16, 32});
  made.ReplaceTensor("blk.1.ffn_gate.weight", {32, 96});
  made.ReplaceTensor("blk.1.ffn_up.weight", {32, 96});
  made.ReplaceTensor("blk.1.ffn_down.weight", {96, 32});
  const auto spec = SpecOf(made);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->layers[0].n_head, 2);
  EXPECT_EQ(spec->layers[1].n_head, 1);
  EXPECT_EQ(spec->layers[1].n_ff, 96);
  EXPECT_THAT(
      Refusal(made, [](TestGguf& f) { f.Set("llama.feed_forward_length", GgufU32s({64})); }),
      AllOf(HasSubstr("feed_forward_length has 1 elements"), HasSubstr("block_count is 2")));
  EXPECT_THAT(Refusal(made,
                      [](TestGguf& f) {
                        f.Set("llama.attention.head_count_kv", GgufU32s({1, 0}));
                      }),
              HasSubstr("head_count_kv[1] is 0"));
  EXPECT_THAT(Refusal(made,
                      [](TestGguf& f) {
                        f.Set("llama.attention.head_count", GgufStrings({"2", "1"}));
                      }),
              HasSubstr("head_count is array 2 elements of type string"));
}

TEST(ModelSpecTest, ChecksTheVocabularyAgainstTheEmbedding) {
  EXPECT_THAT(KeyRefusal("llama", "vocab_size", GgufU32(5)),
              AllOf(HasSubstr("vocab_size is 5"), HasSubstr("tokens has 4")));
  const auto refusal = [](const std::function<void(TestGguf&)>& change) {
    return Refusal(TestModel("llama"), change);
  };
  EXPECT_THAT(refusal([](TestGguf& f) { f.Set("tokenizer.ggml.tokens", GgufStrings({})); }),
              HasSubstr("tokenizer.ggml.tokens is empty"));
  EXPECT_THAT(refusal([](TestGguf& f) {
                f.Set("tokenizer.ggml.tokens", GgufU32s({1, 2}));
              }),
              HasSubstr("tokenizer.ggml.tokens is array 2 elements of type u32"));
  EXPECT_THAT(refusal([](TestGguf& f) {
                f.Set("tokenizer.ggml.tokens", GgufStrings({"a", "b", "c"}));
              }),
              AllOf(HasSubstr("token_embd.weight has 4 rows"), HasSubstr("vocabulary size is 3")));
  EXPECT_THAT(refusal([](TestGguf& f) { f.Remove("tokenizer.ggml.tokens"); }),
              AllOf(HasSubstr("llama.vocab_size is missing"), HasSubstr("tokenizer.ggml.tokens")));
  TestGguf made = TestModel("llama");
  made.Remove("tokenizer.ggml.tokens");
  made.Set("llama.vocab_size", GgufU32(4));
  EXPECT_EQ(SpecOf(made)->n_vocab, 4);
}

TEST(ModelSpecTest, ChecksTheExperts) {
  EXPECT_THAT(KeyRefusal("qwen3moe", "expert_used_count", GgufU32(5)),
              HasSubstr("expert_used_count is 5, must be 1 to 4"));
  EXPECT_THAT(KeyRefusal("qwen3moe", "expert_used_count", GgufU32(0)),
              HasSubstr("expert_used_count is 0"));
  EXPECT_THAT(KeyRefusal("qwen3moe", "expert_count", GgufU32(0)), HasSubstr("expert_count is 0"));
  EXPECT_THAT(
      KeyRefusal("qwen3moe", "expert_feed_forward_length", GgufU32(16)),
      AllOf(HasSubstr("ffn_gate_exps.weight has dimensions {32,32,4}"), HasSubstr("{32,16,4}")));
  EXPECT_THAT(KeyRefusal("qwen2moe", "expert_shared_feed_forward_length", GgufU32(32)),
              HasSubstr("blk.0.ffn_gate_shexp.weight has dimensions {32,64}, expected {32,32}"));
  // The router of a model that has no experts.
  EXPECT_THAT(Refusal(TestModel("qwen3"),
                      [](TestGguf& f) {
                        f.AddTensor("blk.0.ffn_gate_inp.weight", {32, 4});
                      }),
              AllOf(HasSubstr("blk.0.ffn_gate_inp.weight"), HasSubstr("expert_count")));
  EXPECT_THAT(Refusal(TestModel("llama"),
                      [](TestGguf& f) {
                        f.AddTensor("blk.0.ffn_gate.0.weight", {32, 64});
                      }),
              AllOf(HasSubstr("blk.0.ffn_gate.0.weight"), HasSubstr("one tensor for each expert")));
}

TEST(ModelSpecTest, KeepsDenseLayersAmongExpertLayers) {
  TestGguf made = TestModel("llama");
  made.Set("llama.expert_count", GgufU32(4));
  made.Set("llama.expert_used_count", GgufU32(2));
  const auto dense = SpecOf(made);
  ASSERT_TRUE(dense.ok()) << dense.status();
  EXPECT_FALSE(dense->layers[0].is_moe);
  made.RemoveTensor("blk.0.ffn_gate.weight");
  made.RemoveTensor("blk.0.ffn_up.weight");
  made.RemoveTensor("blk.0.ffn_down.weight");
  EXPECT_THAT(std::string(SpecOf(made).status().message()),
              HasSubstr("blk.0.ffn_gate_inp.weight is missing"));
  made.AddTensor("blk.0.ffn_gate_inp.weight", {32, 4});
  made.AddTensor("blk.0.ffn_gate_exps.weight", {32, 64, 4});
  made.AddTensor("blk.0.ffn_up_exps.weight", {32, 64, 4});
  made.AddTensor("blk.0.ffn_down_exps.weight", {64, 32, 4});
  const auto moe = SpecOf(made);
  ASSERT_TRUE(moe.ok()) << moe.status();
  EXPECT_TRUE(moe->layers[0].is_moe);
  EXPECT_TRUE(moe->moe.renormalise);
  EXPECT_EQ(moe->moe.n_ff_expert, 64);
  EXPECT_EQ(moe->moe.n_ff_shared, 0);
}

TEST(ModelSpecTest, RefusesEachTensorThatIsMissingOrMisshapen) {
  for (const std::string arch : kArchitectures) {
    for (const TestTensor& tensor : TestModel(arch).tensors) {
      const bool optional = tensor.name == "output.weight" && arch != "qwen2moe";
      TestGguf without = TestModel(arch);
      without.RemoveTensor(tensor.name);
      const auto spec = SpecOf(without);
      EXPECT_EQ(spec.ok(), optional) << arch << " without " << tensor.name;
      EXPECT_THAT(std::string(spec.status().message()),
                  HasSubstr(optional ? "" : absl::StrCat("tensor ", tensor.name, " is missing")));
      std::vector<int64_t> dims = tensor.dims;
      dims.back() += 32;
      EXPECT_THAT(
          Refusal(TestModel(arch), [&](TestGguf& file) { file.ReplaceTensor(tensor.name, dims); }),
          HasSubstr(tensor.name));
      dims = tensor.dims;
      dims.push_back(2);
      EXPECT_THAT(
          Refusal(TestModel(arch), [&](TestGguf& file) { file.ReplaceTensor(tensor.name, dims); }),
          AllOf(HasSubstr(tensor.name), HasSubstr(",2}, expected {")));
      // Integers are never weights; quantised types are no vectors.
      EXPECT_THAT(Refusal(TestModel(arch),
                          [&](TestGguf& file) {
                            file.ReplaceTensor(tensor.name, tensor.dims, QuantType::kI32);
                          }),
                  AllOf(HasSubstr(tensor.name), HasSubstr("type I32")));
      const bool is_vector = tensor.name.find("norm") != std::string::npos;
      TestGguf quantised = TestModel(arch);
      const bool fits = tensor.dims[0] % 32 == 0;
      quantised.ReplaceTensor(tensor.name, tensor.dims, fits ? QuantType::kQ8_0 : QuantType::kF64);
      EXPECT_EQ(SpecOf(quantised).ok(), !is_vector) << tensor.name;
      TestGguf half = TestModel(arch);
      half.ReplaceTensor(tensor.name, tensor.dims, QuantType::kBF16);
      EXPECT_TRUE(SpecOf(half).ok()) << tensor.name;
    }
  }
}

TEST(ModelSpecTest, ChecksOptionalTensors) {
  const auto check = [](const std::string& arch, const std::string& name,
                        std::vector<int64_t> dims) {
    TestGguf made = TestModel(arch);
    made.AddTensor(name, dims);
    const auto spec = SpecOf(made);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_THAT(spec->warnings, IsEmpty()) << name;
    dims.back() += 1;
    EXPECT_THAT(Refusal(TestModel(arch), [&](TestGguf& file) { file.AddTensor(name, dims); }),
                HasSubstr(name));
  };
  for (const std::string arch : kArchitectures) {
    check(arch, "blk.0.attn_q.bias", {32});
    check(arch, "blk.0.attn_k.bias", {16});
    check(arch, "blk.0.attn_v.bias", {16});
    check(arch, "rope_freqs.weight", {8});
    check(arch, "rope_factors_long.weight", {8});
    for (const char* const base : {"token_embd", "output", "blk.0.attn_q", "blk.0.attn_output"}) {
      check(arch, absl::StrCat(base, ".scale"), {1});
    }
  }
  check("llama", "blk.0.attn_output.bias", {32});
  check("llama", "blk.0.ffn_gate.bias", {64});
  check("llama", "blk.0.ffn_up.bias", {64});
  check("llama", "blk.0.ffn_down.bias", {32});
  check("qwen2", "output.bias", {4});
  for (const char* const base : {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}) {
    check("qwen3moe", absl::StrCat("blk.0.", base, ".scale"), {4});
    check("qwen2moe", absl::StrCat("blk.0.", base, ".scale"), {1});
  }
  check("qwen2moe", "blk.0.ffn_up_shexp.scale", {1});
  EXPECT_THAT(Refusal(TestModel("llama"),
                      [](TestGguf& f) { f.AddTensor("blk.0.attn_q.scale", {1}, QuantType::kF16); }),
              HasSubstr("blk.0.attn_q.scale has type F16, must be F32"));
  EXPECT_THAT(Refusal(TestModel("qwen3moe"),
                      [](TestGguf& f) { f.AddTensor("blk.0.ffn_up_exps.scale", {3}); }),
              HasSubstr("has dimensions {3}, expected {1} or {4}"));
  EXPECT_THAT(Refusal(TestModel("llama"),
                      [](TestGguf& f) {
                        f.AddTensor("rope_freqs.weight", {8}).data.replace(4, 4, Bytes(0.0f));
                      }),
              HasSubstr("rope_freqs.weight: value 1 is 0"));
}

TEST(ModelSpecTest, TakesFusedProjections) {
  TestGguf made = TestModel("qwen2");
  for (const char* const part : {"q", "k", "v"})
    made.RemoveTensor(absl::StrCat("blk.0.attn_", part, ".weight"));
  made.AddTensor("blk.0.attn_qkv.weight", {32, 64});
  made.AddTensor("blk.0.attn_qkv.bias", {64});
  made.AddTensor("blk.0.attn_qkv.scale", {1});
  const auto spec = SpecOf(made);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->warnings, IsEmpty());
  EXPECT_THAT(Refusal(made,
                      [](TestGguf& f) {
                        f.ReplaceTensor("blk.0.attn_qkv.weight", {32, 96});
                      }),
              HasSubstr("attn_qkv.weight has dimensions {32,96}, expected {32,64}"));
}

TEST(ModelSpecTest, WantsTheFactorsOfLongrope) {
  TestGguf made = TestModel("llama");
  made.Set("llama.rope.scaling.type", GgufString("longrope"));
  made.AddTensor("rope_factors_long.weight", {8});
  EXPECT_THAT(std::string(SpecOf(made).status().message()),
              HasSubstr("rope_factors_short.weight is missing"));
  made.AddTensor("rope_factors_short.weight", {8});
  EXPECT_TRUE(SpecOf(made).ok());
}

TEST(ModelSpecTest, WarnsOnceOfTensorsThatNothingUses) {
  TestGguf made = TestModel("qwen3");
  made.AddTensor("cls.output.weight", {32, 2});
  made.AddTensor("blk.0.ffn_down.bias", {32});  // Belongs to llama only.
  made.AddTensor("blk.1.attn_norm.weight", {32});
  const auto spec = SpecOf(made);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(
      spec->warnings,
      ElementsAre(AllOf(HasSubstr("3 tensors are unknown"), HasSubstr("cls.output.weight"),
                        HasSubstr("blk.0.ffn_down.bias"), HasSubstr("blk.1.attn_norm.weight"))));
}

TEST(ModelSpecTest, EscapesAndCutsTheNameOfTheModel) {
  TestGguf made = TestModel("llama");
  made.Set("general.name", GgufString("Tiny\n\xFF"));
  EXPECT_EQ(SpecOf(made)->name, "Tiny\\x0A\\xFF");
  made.Set("general.name", GgufString(std::string(100'000, 'n')));
  EXPECT_EQ(SpecOf(made)->name, std::string(256, 'n'));
  EXPECT_EQ(LayerTensorName(7, "attn_q.weight"), "blk.7.attn_q.weight");
}

}  // namespace
}  // namespace warpline
