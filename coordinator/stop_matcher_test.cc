#include "coordinator/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace warpline {
namespace {

struct Outcome {
  std::string text;
  bool found = false;
};

Outcome Match(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.text += matcher.Push(piece);
  outcome.text += matcher.Finish();
  outcome.found = matcher.found();
  return outcome;
}

TEST(StopMatcherTest, TextEndsBeforeTheStopString) {
  const Outcome outcome = Match({"END"}, {"one ", "two E", "ND three"});
  EXPECT_TRUE(outcome.found);
  EXPECT_EQ(outcome.text, "one two ");
}

TEST(StopMatcherTest, HoldsBackOnlyWhatMayBeginAStop) {
  StopMatcher matcher({"\n\nUser:"});
  EXPECT_EQ(matcher.Push("a\n"), "a");
  EXPECT_EQ(matcher.Push("\nUs"), "");
  EXPECT_EQ(matcher.Push("ual"), "\n\nUsual");
  EXPECT_EQ(matcher.Push(""), "");
  EXPECT_FALSE(matcher.found());
}

TEST(StopMatcherTest, AnEmptyPieceKeepsWhatIsHeldBack) {
  StopMatcher matcher({"abc"});
  EXPECT_EQ(matcher.Push("ab"), "");
  EXPECT_EQ(matcher.Push(""), "");
  EXPECT_EQ(matcher.Push("c"), "");
  EXPECT_TRUE(matcher.found());
}

TEST(StopMatcherTest, FinishGivesTheHeldBackRest) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.Push("non-sto"), "non-");
  EXPECT_EQ(matcher.Finish(), "sto");
}

TEST(StopMatcherTest, TheFirstToEndWinsAndOfThoseTheLongest) {
  EXPECT_EQ(Match({"bc", "abc"}, {"xabcd"}).text, "x");
  EXPECT_EQ(Match({"abcde", "c"}, {"xabcde"}).text, "xab");
}

TEST(StopMatcherTest, OverlappingBeginnings) {
  EXPECT_EQ(Match({"aab"}, {"a", "a", "a", "b"}).text, "a");
  EXPECT_EQ(Match({"abab"}, {"abaab", "ab", "x"}).text, "aba");
}

TEST(StopMatcherTest, MatchesBytesInsideCharacters) {
  const Outcome outcome = Match({"\xE2\x82"}, {"5 \xE2", "\x82\xAC"});
  EXPECT_TRUE(outcome.found);
  EXPECT_EQ(outcome.text, "5 ");
}

TEST(StopMatcherTest, NothingComesAfterTheStop) {
  StopMatcher matcher({"x"});
  EXPECT_EQ(matcher.Push("axb"), "a");
  EXPECT_EQ(matcher.Push("more"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

// Against a search in the whole text, for every way of cutting it.
TEST(StopMatcherTest, AgreesWithAPlainSearch) {
  std::mt19937 random(11);
  const auto random_text = [&random](int length) {
    std::string text;
    for (int index = 0; index < length; ++index) text.push_back("ab"[random() % 2]);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (size_t count = 1 + random() % 3; stops.size() < count;) {
      stops.push_back(random_text(1 + static_cast<int>(random() % 6)));
    }
    const std::string text = random_text(static_cast<int>(random() % 24));
    size_t first_end = std::string::npos;
    size_t begin = text.size();
    for (const std::string& stop : stops) {
      const size_t found = text.find(stop);
      if (found == std::string::npos) continue;
      const size_t end = found + stop.size();
      if (end < first_end || (end == first_end && found < begin)) {
        first_end = end;
        begin = found;
      }
    }
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random() % 4;
      pieces.push_back(text.substr(at, length));
      at += length;
    }
    const Outcome outcome = Match(stops, pieces);
    EXPECT_EQ(outcome.found, first_end != std::string::npos);
    EXPECT_EQ(outcome.text, text.substr(0, begin)) << text;
  }
}

}  // namespace
}  // namespace warpline
