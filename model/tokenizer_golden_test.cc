// Every golden vocabulary: ids of texts and texts of ids.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <time.h>

#include <boost/json.hpp>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/gguf.h"
#include "model/tokenizer.h"

namespace warpline {
namespace {

namespace json = boost::json;

std::string DataPath(const std::string& name) {
  return absl::StrCat(WARPLINE_TEST_DATA, "/tokenizers/", name);
}

std::unique_ptr<Tokenizer> LoadGolden(const std::string& name) {
  const absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(DataPath(name + ".gguf"));
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return nullptr;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(**file);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::vector<json::object> Cases(const std::string& name) {
  std::ifstream file(DataPath(name));
  std::vector<json::object> cases;
  for (std::string line; std::getline(file, line);) cases.push_back(json::parse(line).as_object());
  return cases;
}

std::string TextOf(const json::object& line) {
  std::string text;
  const json::string& encoded = line.at("text_b64").as_string();
  EXPECT_TRUE(absl::Base64Unescape({encoded.data(), encoded.size()}, &text));
  return text;
}

std::vector<int32_t> IdsOf(const json::object& line) {
  return json::value_to<std::vector<int32_t>>(line.at("ids"));
}

class GoldenTokenizerTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTokenizerTest, EncodesEveryCase) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadGolden(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<json::object> cases = Cases(absl::StrCat(GetParam(), ".cases.jsonl"));
  ASSERT_GE(cases.size(), 100u);
  for (const json::object& line : cases) {
    const EncodeOptions options{.add_special = line.at("add_special").as_bool(),
                                .parse_special = line.at("parse_special").as_bool()};
    EXPECT_EQ(tokenizer->Encode(TextOf(line), options), IdsOf(line))
        << json::serialize(line).substr(0, 300);
  }
}

TEST_P(GoldenTokenizerTest, DecodesEveryCase) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadGolden(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<json::object> cases = Cases(absl::StrCat(GetParam(), ".detok.jsonl"));
  ASSERT_GE(cases.size(), 30u);
  for (const json::object& line : cases) {
    const DecodeOptions options{.remove_special = line.at("remove_special").as_bool(),
                                .unparse_special = line.at("unparse_special").as_bool()};
    EXPECT_EQ(tokenizer->Decode(IdsOf(line), options), TextOf(line))
        << json::serialize(line).substr(0, 300);
  }
}

// Control, bidirectional, tag, private-use and non-characters and both forms of an accented letter
// come back byte for byte, and nothing is lost when the text is trusted chat text. (Vocabularies
// that clean spaces are left aside by a text without spaces.)
TEST_P(GoldenTokenizerTest, EchoesUnusualCharacters) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadGolden(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const std::string text =
      "x\u200F\u202E\u2066\U000E0041\U000E007F\uE000\U0010FFFD\uFFFE\U0001FFFF\u00E9e\u0301\u200D"
      "\uFEFF\x01\x7F"
      "\u0915\u094D\u0937";
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, {}), {}), text);
  EXPECT_EQ(tokenizer->Decode(tokenizer->EncodeChat({.text = text}), {.remove_special = true}),
            // With a bos removed the space that SPM put in front stays.
            (tokenizer->strips_leading_space() ? " " : "") + text);
}

std::string Repeat(absl::string_view unit, size_t byte_count) {
  std::string text;
  while (text.size() < byte_count) text.append(unit.data(), unit.size());
  return text;
}

// Pseudo-random ideographs, the same on every run.
std::string Ideographs(size_t byte_count) {
  std::string text;
  for (uint32_t state = 1; text.size() < byte_count;) {
    state = state * 1664525u + 1013904223u;
    const uint32_t code = 0x4E00 + (state >> 16) % 0x5000;
    text.push_back(static_cast<char>(0xE0 | code >> 12));
    text.push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
    text.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
  return text;
}

std::string RandomBytes(size_t byte_count) {
  std::string text;
  for (uint32_t state = 1; text.size() < byte_count;) {
    state = state * 1664525u + 1013904223u;
    text.push_back(static_cast<char>(state >> 24));
  }
  return text;
}

double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double Seconds(const Tokenizer& tokenizer, const std::string& text) {
  const double start = ThreadSeconds();
  EXPECT_FALSE(tokenizer.Encode(text, {.parse_special = true}).empty());
  return ThreadSeconds() - start;
}

// Eight times the text takes about eight times as long: 8 * 1.2 on a quiet machine. The bound here
// is twice eight, because caches are shared with whatever else runs; time that grows with the
// square would be at 64, and with n^1.5 at 22.
TEST_P(GoldenTokenizerTest, TakesLinearTime) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadGolden(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  constexpr size_t kShortBytes = 128 << 10;
  constexpr double kBound = 2 * 8;
  constexpr int kMostTries = 6;
  const std::vector<std::pair<std::string, std::string>> texts = {
      {"letter", Repeat("a", 8 * kShortBytes)},
      {"capital", Repeat("A", 8 * kShortBytes)},
      {"digit", Repeat("7", 8 * kShortBytes)},
      {"space", Repeat(" ", 8 * kShortBytes)},
      {"newline", Repeat("\n", 8 * kShortBytes)},
      {"combining mark", Repeat("\u0301", 8 * kShortBytes)},
      {"ideographs", Ideographs(8 * kShortBytes)},
      {"emoji", Repeat("\U0001F468\u200D\U0001F469\u200D\U0001F467", 8 * kShortBytes)},
      {"half a special token", Repeat("<|x|<|im_", 8 * kShortBytes)},
      {"special tokens", Repeat("<|x|>y", 8 * kShortBytes)},
      {"random bytes", RandomBytes(8 * kShortBytes)},
  };
  for (const auto& [name, text] : texts) {
    double best_short = 1e9;
    double best_long = 1e9;
    for (int i = 0; i < kMostTries && (i == 0 || best_long > kBound * best_short); ++i) {
      best_short = std::min(best_short, Seconds(*tokenizer, text.substr(0, kShortBytes)));
      best_long = std::min(best_long, Seconds(*tokenizer, text));
    }
    EXPECT_LE(best_long, kBound * best_short)
        << name << ": " << best_short << " s and " << best_long << " s";
  }
}

// A mebibyte of one word on a thread whose stack would not hold a frame per character.
TEST_P(GoldenTokenizerTest, NeedsLittleStack) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadGolden(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  struct Work {
    const Tokenizer* tokenizer;
    std::string text;
    std::string back;
  } work{.tokenizer = tokenizer.get(), .text = Repeat("ab", 1 << 20)};
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 256 << 10), 0);
  pthread_t thread;
  const auto run = [](void* argument) -> void* {
    Work& todo = *static_cast<Work*>(argument);
    todo.back = todo.tokenizer->Decode(todo.tokenizer->Encode(todo.text, {}), {});
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, &work), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
  // The SPM vocabulary has no token for its space mark, which therefore comes back as bytes in
  // front.
  EXPECT_TRUE(absl::EndsWith(work.back, work.text));
  EXPECT_LE(work.back.size(), work.text.size() + 3);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, GoldenTokenizerTest,
                         ::testing::Values("deepseek-v3", "default", "gpt-2", "gpt-4o", "llama",
                                           "llama-bpe", "qwen2", "qwen35", "smollm", "tekken"));

}  // namespace
}  // namespace warpline
