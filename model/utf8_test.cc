#include "model/utf8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/tokenizer.h"

namespace warpline {
namespace {

const char kBad[] = "\uFFFD";

// The whole text through DecodeUtf8 and AppendUtf8, each byte of a cut sequence on its own.
std::string Repaired(absl::string_view text) {
  std::string repaired;
  while (!text.empty()) {
    const Utf8Character next = DecodeUtf8(text);
    AppendUtf8(next.code, &repaired);
    text.remove_prefix(next.state == Utf8State::kComplete ? next.byte_count : 1);
  }
  return repaired;
}

std::string Bad(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += kBad;
  return text;
}

TEST(Utf8Test, RoundTripsEveryScalarValue) {
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code == 0xD800) code = 0xE000;
    std::string text;
    AppendUtf8(code, &text);
    ASSERT_EQ(text.size(), Utf8ByteCount(code));
    const Utf8Character back = DecodeUtf8(text);
    ASSERT_EQ(back.state, Utf8State::kComplete);
    ASSERT_EQ(back.code, code);
    ASSERT_EQ(back.byte_count, text.size());
    // Every proper prefix is the beginning of a character, and no more.
    for (size_t length = 1; length < text.size(); ++length) {
      ASSERT_EQ(DecodeUtf8(absl::string_view(text).substr(0, length)).state,
                Utf8State::kIncomplete);
    }
  }
}

TEST(Utf8Test, ReplacesEachBadByte) {
  EXPECT_EQ(Repaired("a\x80z"), absl::StrCat("a", Bad(1), "z"));
  EXPECT_EQ(Repaired("\xFF\xFE"), Bad(2));
  EXPECT_EQ(Repaired("\xC3("), absl::StrCat(Bad(1), "("));
  EXPECT_EQ(Repaired("\xE4\xB8x"), absl::StrCat(Bad(2), "x"));
  EXPECT_EQ(Repaired("\xF0\x9F\x98"), Bad(3));
  EXPECT_EQ(Repaired("\xC0\x80"), Bad(2));  // overlong
  EXPECT_EQ(Repaired("\xC1\xBF"), Bad(2));
  EXPECT_EQ(Repaired("\xE0\x9F\xBF"), Bad(3));
  EXPECT_EQ(Repaired("\xF0\x8F\xBF\xBF"), Bad(4));
  EXPECT_EQ(Repaired("\xED\xA0\x80"), Bad(3));      // a surrogate
  EXPECT_EQ(Repaired("\xF4\x90\x80\x80"), Bad(4));  // above U+10FFFF
  EXPECT_EQ(Repaired("\xF5\x80\x80\x80"), Bad(4));
  EXPECT_EQ(Repaired("\xEF\xBF\xBD"), kBad);  // the replacement itself is a character
}

TEST(Utf8StreamTest, GivesTheSameTextHoweverTheBytesAreCut) {
  const std::string text =
      "a\u00E9\u4E2D\U0001F600z\xF0\x9F"
      "b\xE4\xB8"
      "\u00E9\xFF\xED\xA0\x80.";
  const std::string expected =
      absl::StrCat("a\u00E9\u4E2D\U0001F600z", Bad(2), "b", Bad(2), "\u00E9", Bad(4), ".");
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      Utf8Stream stream;
      std::string joined;
      for (const std::string& part :
           {text.substr(0, first), text.substr(first, second - first), text.substr(second)}) {
        const std::string ready = stream.Push(part);
        EXPECT_EQ(Repaired(ready), ready);
        joined += ready;
      }
      EXPECT_EQ(joined + stream.Finish(), expected) << first << " " << second;
    }
  }
}

TEST(Utf8StreamTest, HoldsBackAnIncompleteCharacterUntilItIsCompleteOrTheEnd) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Push("x\xF0\x9F"), "x");
  EXPECT_EQ(stream.Push("\x98"), "");
  EXPECT_EQ(stream.Push("\x80y"), "\U0001F600y");
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_EQ(stream.Push("\xE4\xB8"), "");
  EXPECT_EQ(stream.Finish(), kBad);  // one for the tail
  EXPECT_EQ(stream.Finish(), "");
}

}  // namespace
}  // namespace warpline
