// Vocabularies made for one question each: what is refused, what ends generation, what user text
// can do.
#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/tokenizer_test_file.h"

namespace warpline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

struct TestToken {
  std::string text;
  int32_t type = kNormal;
  float score = 0;
};

void SetTokens(VocabularyFile& file, const std::vector<TestToken>& tokens) {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
  std::vector<float> scores;
  for (const TestToken& token : tokens) {
    texts.push_back(token.text);
    types.push_back(token.type);
    scores.push_back(token.score);
  }
  file.Set("tokens", texts);
  file.Set("token_type", types);
  file.Set("scores", scores);
}

// Letters a to z are tokens 0 to 25, then a newline, then `more` from 27 on.
std::vector<TestToken> Letters(const std::vector<TestToken>& more) {
  std::vector<TestToken> tokens;
  for (char letter = 'a'; letter <= 'z'; ++letter) tokens.push_back({std::string(1, letter)});
  tokens.push_back({"\u010A"});
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

VocabularyFile Bpe(const std::vector<TestToken>& tokens,
                   const std::vector<std::string>& merges = {}, const std::string& pre = "qwen2") {
  VocabularyFile file("gpt2");
  file.Set("pre", pre);
  file.Set("merges", merges);
  SetTokens(file, tokens);
  return file;
}

VocabularyFile Spm(const std::vector<TestToken>& more) {
  VocabularyFile file("llama");
  std::vector<TestToken> tokens = {{"<unk>", kUnknown}, {"<s>", kControl}, {"</s>", kControl}};
  tokens.insert(tokens.end(), more.begin(), more.end());
  SetTokens(file, tokens);
  return file;
}

std::unique_ptr<Tokenizer> Loaded(const VocabularyFile& file) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = file.Load();
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

void ExpectRefused(const VocabularyFile& file, const ::testing::Matcher<std::string>& message) {
  const absl::Status status = file.Load().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), message);
}

TEST(TokenizerLoadTest, RefusesDamagedTokens) {
  ExpectRefused(Bpe({{"a"}, {"b"}, {"a"}}),
                AllOf(HasSubstr("token 2 \"a\""), HasSubstr("token 0")));
  ExpectRefused(Bpe({{"a"}, {std::string("b\0c", 3)}}),
                AllOf(HasSubstr("token 1"), HasSubstr("NUL")));
  ExpectRefused(Bpe({{"a"}, {"[EMPTY_2]"}, {""}}), HasSubstr("token 2"));
  ExpectRefused(Bpe({}), HasSubstr("tokenizer.ggml.tokens"));
  ExpectRefused(Bpe({{std::string(10 << 20, 'x')}}), HasSubstr("10485760"));
  std::vector<TestToken> many;
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    for (int i = 0; i < 4; ++i) {
      many.push_back({std::string((64 << 10) - i, letter), kControl});
    }
  }
  ExpectRefused(Bpe(many), HasSubstr("special tokens"));
  for (const char* text :
       {"<0x-1>", "<0x+1>", "<0x1>", "<0x 1>", "<0x123>", "<0xGG>", "0x11", "<0X11>", "<0x11"}) {
    ExpectRefused(Spm({{text, kByte}}), AllOf(HasSubstr("token 3"), HasSubstr(text)));
  }
  EXPECT_NE(Loaded(Spm({{"<0xfE>", kByte}, {"<0x-1>", kNormal}})), nullptr);
}

TEST(TokenizerLoadTest, RefusesShortArraysAndMissingKeys) {
  VocabularyFile file = Bpe({{"a"}, {"b"}});
  file.Set("token_type", std::vector<int32_t>{1});
  ExpectRefused(file,
                AllOf(HasSubstr("token_type"), HasSubstr("1 elements"), HasSubstr("2 tokens")));
  file = Bpe({{"a"}, {"b"}});
  file.Set("scores", std::vector<float>{1});
  ExpectRefused(file, HasSubstr("scores"));
  file.Set("scores", std::vector<float>{1, std::numeric_limits<float>::quiet_NaN()});
  ExpectRefused(file, HasSubstr("token 1 \"b\""));
  for (const char* key : {"model", "tokens", "merges"}) {
    file = Bpe({{"a"}});
    file.Remove(key);
    ExpectRefused(file, HasSubstr(key));
  }
  file = Bpe({{"a"}});
  file.Set("tokens", uint32_t{3});
  ExpectRefused(file, HasSubstr("tokenizer.ggml.tokens"));
}

TEST(TokenizerLoadTest, RefusesUnknownNamesAndListsTheKnown) {
  VocabularyFile file = Bpe({{"a"}});
  file.Set("pre", std::string("qwen9"));
  ExpectRefused(file, AllOf(HasSubstr("qwen9"), HasSubstr("qwen2"), HasSubstr("deepseek-v3")));
  file.Set("model", std::string("bert"));
  ExpectRefused(file, AllOf(HasSubstr("bert"), HasSubstr("gpt2")));
}

TEST(TokenizerLoadTest, RefusesMergesThatAreNoPairsButLoadsUnknownOnes) {
  ExpectRefused(Bpe({{"a"}}, {"a b", "ab"}), AllOf(HasSubstr("merges"), HasSubstr("element 1")));
  ExpectRefused(Bpe({{"a"}}, {" ab"}), HasSubstr("element 0"));
  // "xy" is no token: the merge happens, and its bytes are looked up one by one (y is unknown and
  // dropped).
  const auto tokenizer = Loaded(Bpe({{"a"}, {"x"}}, {"x y", "nobody knows"}));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("axya", {}), ElementsAre(0, 1, 0));
}

TEST(TokenizerLoadTest, TakesSpecialIdsOutOfRangeAsAbsentWithAWarning) {
  VocabularyFile file = Bpe(Letters({}));
  file.Set("bos_token_id", uint32_t{27});
  file.Set("eos_token_id", uint32_t{0xFFFFFFFF});
  file.Set("padding_token_id", uint32_t{1000});
  file.Set("add_bos_token", true);
  const auto tokenizer = Loaded(file);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->bos_id(), -1);
  EXPECT_EQ(tokenizer->eos_id(), -1);
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->TokenText(-1), "");
  EXPECT_THAT(
      std::vector<std::string>(tokenizer->warnings().begin(), tokenizer->warnings().end()),
      ElementsAre(AllOf(HasSubstr("bos_token_id"), HasSubstr("27")), HasSubstr("4294967295"),
                  HasSubstr("padding_token_id"), HasSubstr("bos")));
  EXPECT_THAT(tokenizer->Encode("ab", {.add_special = true}), ElementsAre(0, 1));
}

TEST(TokenizerLoadTest, AModelWithoutVocabularyEncodesNothing) {
  const auto tokenizer = Loaded(VocabularyFile("no_vocab"));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_FALSE(tokenizer->has_vocabulary());
  EXPECT_EQ(tokenizer->vocab_size(), 0);
  EXPECT_THAT(tokenizer->Encode("text", {.add_special = true}), IsEmpty());
  EXPECT_THAT(tokenizer->EncodeChat({.text = "text", .trusted = {{0, 4}}}), IsEmpty());
  EXPECT_EQ(tokenizer->Decode({0, 1}, {}), "");
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(0));
}

TEST(TokenizerTest, UsesTheDefaultsOfItsKindUntilKeysOverrideThem) {
  VocabularyFile file = Bpe(Letters({}), {}, "llama-bpe");
  auto tokenizer = Loaded(file);
  EXPECT_EQ(tokenizer->bos_id(), 11);
  EXPECT_EQ(tokenizer->eos_id(), 11);
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_THAT(tokenizer->Encode("", {.add_special = true}), ElementsAre(11));
  EXPECT_THAT(tokenizer->Encode("", {}), IsEmpty());
  file.Set("add_bos_token", false);
  file.Set("add_eos_token", true);
  file.Set("eos_token_id", uint32_t{2});
  tokenizer = Loaded(file);
  EXPECT_THAT(tokenizer->Encode("ab", {.add_special = true}), ElementsAre(0, 1, 2));
  EXPECT_EQ(tokenizer->Decode({0, 1, 2}, {.remove_special = true}), "ab");
  EXPECT_EQ(tokenizer->Decode({0, 1, 2}, {}), "abc");
  EXPECT_EQ(Loaded(Bpe(Letters({}), {}, "glm4"))->bos_id(), -1);
  EXPECT_FALSE(Loaded(Bpe(Letters({})))->adds_bos());
  EXPECT_EQ(Loaded(Bpe({{"a"}}))->eos_id(), -1);  // the default 11 lies outside
}

TEST(TokenizerTest, KnowsWhatEndsGeneration) {
  VocabularyFile file = Bpe(Letters({{"<|im_end|>", kNormal},  // 27
                                     {"<|end|>", kControl},
                                     {"<|fim_pad|>", kUserDefined},
                                     {"<|file_sep|>", kControl},
                                     {"<|im_start|>", kControl},
                                     {"<|return|>", kControl}}));  // 32
  file.Set("eos_token_id", uint32_t{4});
  file.Set("eot_token_id", uint32_t{5});
  file.Set("suppress_tokens", std::vector<int32_t>{7, 33, -1, 3, 7});
  const auto tokenizer = Loaded(file);
  ASSERT_NE(tokenizer, nullptr);
  std::vector<int32_t> ends;
  for (int32_t id = -1; id <= tokenizer->vocab_size(); ++id) {
    if (tokenizer->IsEndOfGeneration(id)) ends.push_back(id);
  }
  EXPECT_THAT(ends, ElementsAre(4, 5, 27, 28, 29, 30, 32));
  EXPECT_THAT(tokenizer->suppressed_ids(), ElementsAre(7, 3));
  // Found by text they are control tokens, whatever the file says.
  EXPECT_EQ(tokenizer->TokenBytes(27, /*show_special=*/false), "");
  EXPECT_EQ(tokenizer->TokenBytes(27, /*show_special=*/true), "<|im_end|>");

  file = Bpe(Letters({{"<|end|>", kControl}, {"<|return|>", kControl}, {"<|call|>", kControl}}));
  const auto harmony = Loaded(file);
  EXPECT_FALSE(harmony->IsEndOfGeneration(27));
  EXPECT_TRUE(harmony->IsEndOfGeneration(28));
}

TEST(TokenizerTest, PartitionsByLongestTextFirst) {
  const auto tokenizer = Loaded(Bpe(
      Letters({{"<a>", kControl}, {"<a>b", kControl}, {"b<", kUserDefined}, {"ab", kUnknown}})));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("<a>b<a>", {.parse_special = true}), ElementsAre(28, 27));
  // Without special tokens only the user-defined one matches; '>' is no token and goes.
  EXPECT_THAT(tokenizer->Encode("ab<a>", {}), ElementsAre(0, 29, 0));
  EXPECT_THAT(tokenizer->Encode("ab<a>", {.parse_special = true}), ElementsAre(30, 27));
}

TEST(TokenizerTest, IgnoresMergesForWholeWordsOnly) {
  const std::vector<TestToken> tokens = Letters({{"abc"}, {"bc"}});
  EXPECT_THAT(Loaded(Bpe(tokens, {"b c"}, "qwen2"))->Encode("abc", {}), ElementsAre(0, 28));
  EXPECT_THAT(Loaded(Bpe(tokens, {"b c"}, "tekken"))->Encode("abc", {}), ElementsAre(27));
}

TEST(TokenizerTest, ChecksTheFirstRankOfAMergeThatOccursTwice) {
  const std::vector<TestToken> tokens = Letters({{"ab"}, {"bc"}});
  EXPECT_THAT(Loaded(Bpe(tokens, {"a b", "b c", "a b"}))->Encode("abc", {}), ElementsAre(27, 2));
  EXPECT_THAT(Loaded(Bpe(tokens, {"b c", "a b", "b c"}))->Encode("abc", {}), ElementsAre(0, 28));
}

TEST(TokenizerTest, SpmFallsBackToBytesAndThenToUnknown) {
  const auto tokenizer =
      Loaded(Spm({{"\u2581", kNormal}, {"a", kNormal}, {"<0xC3>", kByte}, {"<0xA9>", kByte}}));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("a\u00E9z", {.add_special = true}), ElementsAre(1, 3, 4, 5, 6, 0));
  EXPECT_EQ(tokenizer->Decode({1, 3, 4, 5, 6}, {.remove_special = true}), " a\u00E9");
  EXPECT_EQ(tokenizer->Decode({3, 4, 5, 6}, {}), "a\u00E9");
  EXPECT_TRUE(tokenizer->strips_leading_space());
}

// Text that spells "<s>" out of ordinary pieces stays text, though their concatenation is a token.
TEST(TokenizerTest, SpmPiecesNeverMergeIntoAControlToken) {
  VocabularyFile file = Spm({{"<", kNormal},
                             {"s", kNormal},
                             {">", kNormal},
                             {"<s", kNormal},
                             {"\u2581", kNormal},
                             {"<x>", kUserDefined},
                             {"x", kNormal}});
  file.Set("add_space_prefix", false);
  const auto tokenizer = Loaded(file);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("<s>", {}), ElementsAre(6, 5));
  EXPECT_THAT(tokenizer->Encode("<s>", {.parse_special = true}), ElementsAre(1));
  EXPECT_THAT(tokenizer->EncodeChat({.text = "<s>s<s>", .trusted = {{3, 4}}}),
              ElementsAre(1, 6, 5, 4, 6, 5));
}

TEST(TokenizerTest, ShowsTokensByType) {
  const auto tokenizer = Loaded(Bpe({{"\u0120x"},
                                     {"u v", kUserDefined},
                                     {"<c>", kControl},
                                     {"un", kUnused},
                                     {"un0", 0},
                                     {"\u4E2D"},
                                     {"<0x0A>", kByte}}));
  ASSERT_NE(tokenizer, nullptr);
  std::vector<std::string> hidden;
  std::vector<std::string> shown;
  for (int32_t id = -1; id < 8; ++id) {
    hidden.push_back(tokenizer->TokenBytes(id, false));
    shown.push_back(tokenizer->TokenBytes(id, true));
  }
  EXPECT_THAT(hidden, ElementsAre("", " x", "u v", "", "", "", "\u4E2D", "\n", ""));
  EXPECT_THAT(shown, ElementsAre("", " x", "u v", "<c>", "", "", "\u4E2D", "\n", ""));
  EXPECT_EQ(tokenizer->Decode({0, 1, 99, -5, 2, 6}, {}), " xu v\n");
}

TEST(TokenizerTest, CleansSpacesWhereTheVocabularySaysSo) {
  std::vector<TestToken> tokens = Letters({{"\u0120"}, {"?"}, {"'"}, {"."}});  // 27 to 30
  const std::vector<int32_t> ids = {0, 27, 28, 1, 27, 29, 27, 2, 27, 29, 18, 27, 29, 17, 4, 27, 30};
  EXPECT_EQ(Loaded(Bpe(tokens, {}, "qwen2"))->Decode(ids, {}), "a ?b ' c 's 're .");
  EXPECT_EQ(Loaded(Bpe(tokens, {}, "gpt-2"))->Decode(ids, {}), "a?b'c's're.");
}

}  // namespace
}  // namespace warpline
