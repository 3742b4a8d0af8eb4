#include "model/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/utf8.h"

namespace warpline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Words(const std::string& name, absl::string_view text) {
  PreTokenizer pre_tokenizer;
  EXPECT_TRUE(FindPreTokenizer(name, &pre_tokenizer)) << name;
  std::u32string codes;
  while (!text.empty()) {
    const Utf8Character next = DecodeUtf8(text);
    codes.push_back(next.code);
    text.remove_prefix(next.byte_count);
  }
  std::vector<std::string> words;
  size_t at = 0;
  for (const uint32_t end : SplitIntoWords(pre_tokenizer, codes)) {
    words.emplace_back();
    for (; at < end; ++at) AppendUtf8(codes[at], &words.back());
  }
  EXPECT_EQ(at, codes.size());
  return words;
}

TEST(PreTokenizerTest, Qwen2) {
  EXPECT_THAT(Words("qwen2", "I'm DON'T 2026!"),
              ElementsAre("I", "'m", " DON", "'T", " ", "2", "0", "2", "6", "!"));
  EXPECT_THAT(Words("qwen2", "a\tb.c \n\n d"), ElementsAre("a", "\tb", ".c", " \n\n", " d"));
  EXPECT_THAT(Words("qwen2", "x   y  "), ElementsAre("x", "  ", " y", "  "));
  EXPECT_THAT(Words("qwen2", "(!?\r\n)"), ElementsAre("(!?\r\n", ")"));
  EXPECT_THAT(Words("qwen2", "e\u0301e"),
              ElementsAre("e", "\u0301e"));  // the mark is an optional first character
  EXPECT_THAT(Words("qwen2", ""), ElementsAre());
}

TEST(PreTokenizerTest, Qwen35JoinsMarksToLetters) {
  // The mark after " !" is on its own: the run of punctuation that took the space does not take
  // marks.
  EXPECT_THAT(Words("qwen35", "e\u0301e \u0301 !\u0301"),
              ElementsAre("e\u0301e", " \u0301", " !", "\u0301"));
}

TEST(PreTokenizerTest, Llama3TakesUpToThreeDigits) {
  EXPECT_THAT(Words("llama-bpe", "1234567 89"), ElementsAre("123", "456", "7", " ", "89"));
}

TEST(PreTokenizerTest, Gpt2LeavesSingleSpacesBetweenMatches) {
  EXPECT_THAT(Words("gpt-2", "I'm I'M 12 a\tb"),
              ElementsAre("I", "'m", " I", "'", "M", " 12", " a", "\t", "b"));
  EXPECT_THAT(Words("gpt-2", "a \n b"), ElementsAre("a", " \n", " b"));
  EXPECT_THAT(Words("smollm", " 12 a"), ElementsAre(" ", "1", "2", " a"));
}

TEST(PreTokenizerTest, TekkenAndGpt4oCutByCase) {
  EXPECT_THAT(Words("tekken", "camelCase XMLHttp ABC it's"),
              ElementsAre("camel", "Case", " XMLHttp", " ABC", " it", "'s"));
  EXPECT_THAT(Words("gpt-4o", "it's WE'LL 1234 //\n/"),
              ElementsAre("it's", " WE'LL", " ", "123", "4", " //\n/"));
  // A letter outside ASCII is of both cases, so that the first form ends after it.
  EXPECT_THAT(Words("tekken", "\u00C9AB"), ElementsAre("\u00C9", "AB"));
  EXPECT_THAT(Words("tekken", "A\u00C9b"), ElementsAre("A\u00C9b"));
}

TEST(PreTokenizerTest, DeepSeekSplitsNumbersAndIdeographsFirst) {
  EXPECT_THAT(Words("deepseek-v3", "a1234\u4E2D\u3042b .x"),
              ElementsAre("a", "123", "4", "\u4E2D\u3042", "b", " .", "x"));
  EXPECT_THAT(Words("deepseek-v3", "x.y e\u0301 \x01\x02"),
              ElementsAre("x", ".y", " e\u0301", " ", "\x01\x02"));
}

TEST(PreTokenizerTest, DefaultAndFalconSplitInSteps) {
  EXPECT_THAT(Words("default", "a`b $12345."),
              ElementsAre("a", "`", "b", " ", "$", "123", "45", "."));
  EXPECT_THAT(Words("falcon", "a`b 12345"), ElementsAre("a", "`", "b", " ", "123", "45"));
}

TEST(PreTokenizerTest, KnowsEveryNameAndWhatItImplies) {
  struct Expected {
    const char* name;
    bool ignore_merges, adds_bos, cleans_spaces;
  };
  for (const Expected& expected : std::vector<Expected>{{"qwen2", false, false, false},
                                                        {"deepseek-r1-qwen", false, false, false},
                                                        {"kormo", false, false, false},
                                                        {"f2llmv2", false, false, false},
                                                        {"megrez", false, false, true},
                                                        {"stablelm2", false, false, true},
                                                        {"hunyuan", false, false, false},
                                                        {"solar-open", false, false, false},
                                                        {"grok-2", false, false, false},
                                                        {"qwen35", false, false, false},
                                                        {"llama-bpe", true, true, true},
                                                        {"llama3", true, true, true},
                                                        {"llama-v3", true, true, true},
                                                        {"falcon3", true, true, true},
                                                        {"falcon-h1", true, true, true},
                                                        {"pixtral", true, true, true},
                                                        {"midm-2.0", true, true, true},
                                                        {"lfm2", true, true, true},
                                                        {"jina-v5-nano", true, true, true},
                                                        {"dbrx", false, false, true},
                                                        {"smaug-bpe", false, false, true},
                                                        {"glm4", false, false, true},
                                                        {"chatglm-bpe", false, false, true},
                                                        {"smollm", false, false, false},
                                                        {"command-r", false, false, false},
                                                        {"starcoder", false, false, true},
                                                        {"refact", false, false, true},
                                                        {"codeshell", false, false, true},
                                                        {"exaone", false, false, true},
                                                        {"minerva-7b", false, false, true},
                                                        {"mellum2", false, false, true},
                                                        {"gpt-2", false, false, true},
                                                        {"phi-2", false, false, true},
                                                        {"mpt", false, false, true},
                                                        {"olmo", false, false, true},
                                                        {"jais", false, false, true},
                                                        {"gigachat", false, false, true},
                                                        {"a.x-4.0", false, false, true},
                                                        {"mellum", false, false, true},
                                                        {"modern-bert", false, false, true},
                                                        {"exaone4", false, false, true},
                                                        {"jina-es", false, false, true},
                                                        {"jina-de", false, false, true},
                                                        {"jina-v2-es", false, false, true},
                                                        {"jina-v2-de", false, false, true},
                                                        {"trillion", false, false, false},
                                                        {"granite-docling", false, false, false},
                                                        {"tekken", true, true, false},
                                                        {"gpt-4o", false, false, false},
                                                        {"llama4", false, false, false},
                                                        {"kanana2", false, false, false},
                                                        {"talkie", false, false, false},
                                                        {"minimax-m2", false, false, false},
                                                        {"deepseek-v3", false, false, false},
                                                        {"hunyuan-dense", false, false, false},
                                                        {"joyai-llm", false, false, false},
                                                        {"falcon", false, false, true},
                                                        {"default", false, false, true}}) {
    PreTokenizer found;
    ASSERT_TRUE(FindPreTokenizer(expected.name, &found)) << expected.name;
    EXPECT_EQ(found.ignore_merges, expected.ignore_merges) << expected.name;
    EXPECT_EQ(found.adds_bos, expected.adds_bos) << expected.name;
    EXPECT_EQ(found.cleans_spaces, expected.cleans_spaces) << expected.name;
    EXPECT_THAT(KnownPreTokenizers(), HasSubstr(expected.name));
  }
  PreTokenizer found;
  EXPECT_FALSE(FindPreTokenizer("qwen", &found));
  EXPECT_FALSE(FindPreTokenizer("", &found));
}

}  // namespace
}  // namespace warpline
