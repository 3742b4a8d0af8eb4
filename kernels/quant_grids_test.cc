// Compares the grids with the plain lists of integers in tests/data/grids.
#include "kernels/quant_grids.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace warpline {
namespace {

// The integers after "values" in the file, one entry after another.
std::vector<int> ReadValues(const std::string& name) {
  const std::string path = std::string(WARPLINE_TEST_DATA) + "/grids/" + name + ".json";
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t begin = text.find("\"values\"");
  EXPECT_NE(begin, std::string::npos) << path;
  std::vector<int> values;
  for (const char* at = text.c_str() + begin; *at != '\0';) {
    if (*at == '-' || std::isdigit(static_cast<unsigned char>(*at)) != 0) {
      char* end = nullptr;
      values.push_back(static_cast<int>(std::strtol(at, &end, 10)));
      at = end;
    } else {
      ++at;
    }
  }
  return values;
}

template <typename Entry>
void ExpectGrid(const std::string& name, const Entry* entries, int entry_count) {
  const std::vector<int> want = ReadValues(name);
  constexpr int kWidth = sizeof(Entry);
  ASSERT_EQ(static_cast<int>(want.size()), entry_count * kWidth) << name;
  for (int i = 0; i < entry_count * kWidth; ++i) {
    const int got = static_cast<int8_t>(entries[i / kWidth] >> (8 * (i % kWidth)) & 255);
    ASSERT_EQ(got, want[i]) << name << " entry " << i / kWidth << " value " << i % kWidth;
  }
}

TEST(QuantGridsTest, AreTheGoldenOnes) {
  const QuantGrids& grids = HostQuantGrids();
  ExpectGrid("IQ2_XXS", grids.iq2_xxs, kIQ2XXSGridSize);
  ExpectGrid("IQ2_XS", grids.iq2_xs, kIQ2XSGridSize);
  ExpectGrid("IQ2_S", grids.iq2_s, kIQ2SGridSize);
  ExpectGrid("IQ3_XXS", grids.iq3_xxs, kIQ3XXSGridSize);
  ExpectGrid("IQ3_S", grids.iq3_s, kIQ3SGridSize);
  ExpectGrid("IQ1_S", grids.iq1, kIQ1GridSize);
}

}  // namespace
}  // namespace warpline
