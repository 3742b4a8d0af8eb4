#include "model/bpe_merge.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace warpline {
namespace {

TEST(RankQueueTest, GivesWhatASortedSetGives) {
  std::mt19937 random(1);
  RankQueue queue;
  std::multiset<std::pair<int32_t, int32_t>> expected;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 5 < 3) {
      const int32_t rank = static_cast<int32_t>(random() % 7);
      const int32_t position = static_cast<int32_t>(random() % 1000);
      queue.Push(rank, position);
      expected.insert({rank, position});
    } else {
      std::pair<int32_t, int32_t> got;
      ASSERT_EQ(queue.Pop(&got.first, &got.second), !expected.empty());
      if (expected.empty()) continue;
      ASSERT_EQ(got, *expected.begin());
      expected.erase(expected.begin());
    }
  }
}

using Merges = std::map<std::pair<int32_t, int32_t>, PairMerge>;

// The definition: the lowest rank, leftmost first, until nothing joins.
std::vector<int32_t> MergeByDefinition(std::vector<int32_t> values, const Merges& merges) {
  while (true) {
    size_t best = values.size();
    PairMerge best_merge;
    for (size_t i = 0; i + 1 < values.size(); ++i) {
      const auto found = merges.find({values[i], values[i + 1]});
      if (found == merges.end()) continue;
      if (best_merge.rank < 0 || found->second.rank < best_merge.rank) {
        best = i;
        best_merge = found->second;
      }
    }
    if (best_merge.rank < 0) return values;
    values[best] = best_merge.value;
    values.erase(values.begin() + static_cast<int64_t>(best) + 1);
  }
}

TEST(MergeSymbolsTest, EqualsItsDefinitionForShortAndLongTexts) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    // Values beyond the letters come from merges, which also use one another's results. Ranks may
    // be equal, as scores are.
    Merges merges;
    const bool equal_ranks = round % 2 == 1;
    for (int32_t i = 0; i < 40; ++i) {
      const std::pair<int32_t, int32_t> pair(static_cast<int32_t>(random() % (3 + i)),
                                             static_cast<int32_t>(random() % (3 + i)));
      const int32_t rank = static_cast<int32_t>(equal_ranks ? random() % 5 : random() % 1000);
      merges.try_emplace(pair, PairMerge{.rank = rank, .value = 3 + i});
    }
    std::vector<int32_t> values(random() % 200);
    for (int32_t& value : values) value = static_cast<int32_t>(random() % 3);

    std::vector<MergeSymbol> symbols;
    for (const int32_t value : values) symbols.push_back({.value = value});
    RankQueue queue;
    MergeSymbols(
        [&merges](const MergeSymbol& left, const MergeSymbol& right) {
          const auto found = merges.find({left.value, right.value});
          return found == merges.end() ? PairMerge{} : found->second;
        },
        &queue, &symbols);
    std::vector<int32_t> merged;
    for (int32_t i = symbols.empty() ? -1 : 0; i >= 0; i = symbols[i].next)
      merged.push_back(symbols[i].value);
    ASSERT_EQ(merged, MergeByDefinition(values, merges)) << "round " << round;
  }
}

}  // namespace
}  // namespace warpline
