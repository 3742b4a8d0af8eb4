#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/tokenizer.h"

namespace warpline {
namespace {

const char kBad[] = "\uFFFD";

std::string Bad(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += kBad;
  return text;
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
        joined += stream.Push(part);
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
