#include "model/ngram_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace warpline {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

struct Case {
  std::string name;
  PleSpec spec;
  std::vector<int32_t> tokens;
  std::vector<int64_t> rows;  // of all tokens, from the reference implementation
};

template <typename T>
std::vector<T> NumbersOfLine(std::istream& input) {
  std::string line;
  std::getline(input, line);
  std::istringstream numbers(line);
  std::vector<T> values;
  for (T value; numbers >> value;) values.push_back(value);
  return values;
}

// Six lines each: name, N, heads, eos; multipliers; offsets; moduli; tokens; rows.
std::vector<Case> ReadCases() {
  std::ifstream input(WARPLINE_TEST_DATA "/ngram_rows.txt");
  std::vector<Case> cases;
  Case next;
  while (input >> next.name >> next.spec.ngram_size >> next.spec.heads_per_ngram >>
         next.spec.eos_token_id) {
    input.ignore();
    next.spec.multipliers = NumbersOfLine<uint64_t>(input);
    next.spec.offsets = NumbersOfLine<uint64_t>(input);
    next.spec.moduli = NumbersOfLine<uint64_t>(input);
    next.tokens = NumbersOfLine<int32_t>(input);
    next.rows = NumbersOfLine<int64_t>(input);
    cases.push_back(next);
  }
  return cases;
}

// The rows of a case whose tokens come in chunks of `chunk`.
std::vector<int64_t> RowsInChunks(const Case& one, size_t chunk) {
  NgramContext context(one.spec);
  std::vector<int64_t> rows;
  for (size_t begin = 0; begin < one.tokens.size(); begin += chunk) {
    const absl::Span<const int32_t> ids = absl::MakeConstSpan(one.tokens).subspan(begin, chunk);
    std::vector<int64_t> some(ids.size() * one.spec.head_count());
    NgramRows(one.spec, context, ids, absl::MakeSpan(some));
    context.Append(ids);
    rows.insert(rows.end(), some.begin(), some.end());
  }
  return rows;
}

TEST(NgramRowsTest, AreThoseOfTheReferenceWhateverTheChunks) {
  const std::vector<Case> cases = ReadCases();
  ASSERT_EQ(cases.size(), 9U);
  for (const Case& one : cases) {
    ASSERT_EQ(one.rows.size(), one.tokens.size() * one.spec.head_count()) << one.name;
    for (const size_t chunk : {1, 2, 3, 5, 100}) {
      EXPECT_THAT(RowsInChunks(one, chunk), ElementsAreArray(one.rows))
          << one.name << " in chunks of " << chunk;
    }
  }
}

TEST(NgramContextTest, KeepsTheLastIdsAndGoesBackToACopy) {
  NgramContext context(PleSpec{.ngram_size = 4});
  EXPECT_THAT(context.ids(), IsEmpty());
  context.Append({1, 2});
  EXPECT_THAT(context.ids(), ElementsAre(1, 2));
  const NgramContext before = context;
  context.Append({3, 4});
  EXPECT_THAT(context.ids(), ElementsAre(2, 3, 4));
  context.Append({5, 6, 7, 8, 9});
  EXPECT_THAT(context.ids(), ElementsAre(7, 8, 9));
  context = before;
  EXPECT_THAT(context.ids(), ElementsAre(1, 2));
  context.Clear();
  EXPECT_THAT(context.ids(), IsEmpty());
}

}  // namespace
}  // namespace warpline
