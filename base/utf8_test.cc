#include "base/utf8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace warpline {
namespace {

const char kBad[] = "\uFFFD";

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
  EXPECT_EQ(ReplaceInvalidUtf8("a\x80z"), absl::StrCat("a", Bad(1), "z"));
  EXPECT_EQ(ReplaceInvalidUtf8("\xFF\xFE"), Bad(2));
  EXPECT_EQ(ReplaceInvalidUtf8("\xC3("), absl::StrCat(Bad(1), "("));
  EXPECT_EQ(ReplaceInvalidUtf8("\xE4\xB8x"), absl::StrCat(Bad(2), "x"));
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x9F\x98"), Bad(3));
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\x80"), Bad(2));  // overlong
  EXPECT_EQ(ReplaceInvalidUtf8("\xC1\xBF"), Bad(2));
  EXPECT_EQ(ReplaceInvalidUtf8("\xE0\x9F\xBF"), Bad(3));
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x8F\xBF\xBF"), Bad(4));
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80"), Bad(3));      // a surrogate
  EXPECT_EQ(ReplaceInvalidUtf8("\xF4\x90\x80\x80"), Bad(4));  // above U+10FFFF
  EXPECT_EQ(ReplaceInvalidUtf8("\xF5\x80\x80\x80"), Bad(4));
  EXPECT_EQ(ReplaceInvalidUtf8("\xEF\xBF\xBD"), kBad);  // the replacement itself is a character
}

TEST(Utf8Test, TellsTextFromBytes) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"));
  for (const char* const bytes :
       {"\xE2\x82", "a\xFF", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80"}) {
    EXPECT_FALSE(IsUtf8(bytes)) << bytes;
  }
}

}  // namespace
}  // namespace warpline
