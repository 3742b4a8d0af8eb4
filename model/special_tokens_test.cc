#include "model/special_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace warpline {
namespace {

Vocabulary VocabularyOf(const std::vector<std::string>& texts) {
  Vocabulary vocabulary;
  vocabulary.kind = TokenizerKind::kBpe;
  vocabulary.texts = texts;
  vocabulary.types.assign(texts.size(), TokenType::kControl);
  return vocabulary;
}

// The definition: token by token, longest first, each scanned over the parts that are left.
std::vector<SpecialMatch> FindByDefinition(const std::vector<std::string>& texts,
                                           const std::string& text,
                                           const std::vector<bool>& allowed) {
  std::vector<int32_t> order;
  for (size_t id = 0; id < texts.size(); ++id) order.push_back(static_cast<int32_t>(id));
  std::stable_sort(order.begin(), order.end(),
                   [&texts](int32_t a, int32_t b) { return texts[a].size() > texts[b].size(); });
  std::vector<bool> taken(text.size());
  std::vector<SpecialMatch> matches;
  for (const int32_t id : order) {
    const size_t length = texts[id].size();
    for (size_t begin = 0; begin + length <= text.size(); ++begin) {
      if (!allowed[id] || text.compare(begin, length, texts[id]) != 0) continue;
      if (std::find(taken.begin() + static_cast<int64_t>(begin),
                    taken.begin() + static_cast<int64_t>(begin + length),
                    true) != taken.begin() + static_cast<int64_t>(begin + length)) {
        continue;
      }
      std::fill(taken.begin() + static_cast<int64_t>(begin),
                taken.begin() + static_cast<int64_t>(begin + length), true);
      matches.push_back({.begin = begin, .end = begin + length, .id = id});
    }
  }
  std::sort(matches.begin(), matches.end(),
            [](const SpecialMatch& a, const SpecialMatch& b) { return a.begin < b.begin; });
  return matches;
}

TEST(SpecialTokensTest, EqualsItsDefinition) {
  std::mt19937 random(3);
  const auto random_text = [&random](size_t most) {
    std::string text(1 + random() % most, ' ');
    for (char& letter : text) letter = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> texts;
    for (int i = 0; i < 8; ++i) {
      const std::string text = random_text(6);
      if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
    }
    std::vector<bool> allowed(texts.size());
    for (size_t id = 0; id < texts.size(); ++id) allowed[id] = random() % 4 != 0;
    const Vocabulary vocabulary = VocabularyOf(texts);
    const std::string text = random_text(60);
    const std::vector<SpecialMatch> found =
        SpecialTokens(vocabulary).Find(text, [&allowed](int32_t id, size_t, size_t) {
          return static_cast<bool>(allowed[id]);
        });
    const std::vector<SpecialMatch> expected = FindByDefinition(texts, text, allowed);
    ASSERT_EQ(found.size(), expected.size()) << text;
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].begin, expected[i].begin);
      EXPECT_EQ(found[i].end, expected[i].end);
      EXPECT_EQ(found[i].id, expected[i].id);
    }
  }
}

TEST(SpecialTokensTest, AsksAboutEachPlace) {
  const Vocabulary vocabulary = VocabularyOf({"<x>", "x>"});
  const std::vector<SpecialMatch> found =
      SpecialTokens(vocabulary).Find("<x><x>", [](int32_t id, size_t begin, size_t) {
        return id == 1 || begin >= 3;
      });
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].id, 1);
  EXPECT_EQ(found[0].begin, 1u);
  EXPECT_EQ(found[1].id, 0);
}

}  // namespace
}  // namespace warpline
