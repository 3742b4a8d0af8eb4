#include "kernels/quant_grids.h"

#include <array>

#include "kernels/quant_grids_packed.h"

namespace warpline {
namespace {

constexpr int8_t kIQ2Alphabet[] = {8, 25, 43};
constexpr int8_t kIQ3XXSAlphabet[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr int8_t kIQ3SAlphabet[] = {1, 3, 5, 7, 9, 11, 13, 15};
constexpr int8_t kIQ1Alphabet[] = {-1, 0, 1};

constexpr int8_t kIQ4Codes[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kFp4Codes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Spreads packed letters to one byte a value, at compile time.
template <typename Entry, int kCount>
constexpr std::array<Entry, kCount> Expand(const uint16_t (&letters)[kCount],
                                           const int8_t* alphabet) {
  constexpr int kWidth = sizeof(Entry);
  constexpr int kBits = kWidth == 8 ? 2 : 3;
  std::array<Entry, kCount> entries{};
  for (int i = 0; i < kCount; ++i) {
    for (int j = 0; j < kWidth; ++j) {
      const int letter = (letters[i] >> (kBits * j)) & ((1 << kBits) - 1);
      entries[i] |= static_cast<Entry>(static_cast<uint8_t>(alphabet[letter])) << (8 * j);
    }
  }
  return entries;
}

constexpr auto kIQ2XXSGrid = Expand<uint64_t, kIQ2XXSGridSize>(kIQ2XXSLetters, kIQ2Alphabet);
constexpr auto kIQ2XSGrid = Expand<uint64_t, kIQ2XSGridSize>(kIQ2XSLetters, kIQ2Alphabet);
constexpr auto kIQ2SGrid = Expand<uint64_t, kIQ2SGridSize>(kIQ2SLetters, kIQ2Alphabet);
constexpr auto kIQ3XXSGrid = Expand<uint32_t, kIQ3XXSGridSize>(kIQ3XXSLetters, kIQ3XXSAlphabet);
constexpr auto kIQ3SGrid = Expand<uint32_t, kIQ3SGridSize>(kIQ3SLetters, kIQ3SAlphabet);
constexpr auto kIQ1Grid = Expand<uint64_t, kIQ1GridSize>(kIQ1Letters, kIQ1Alphabet);

constexpr QuantGrids kHostGrids = {
    .iq2_xxs = kIQ2XXSGrid.data(),
    .iq2_xs = kIQ2XSGrid.data(),
    .iq2_s = kIQ2SGrid.data(),
    .iq3_xxs = kIQ3XXSGrid.data(),
    .iq3_s = kIQ3SGrid.data(),
    .iq1 = kIQ1Grid.data(),
    .iq4_codes = kIQ4Codes,
    .fp4_codes = kFp4Codes,
};

}  // namespace

const QuantGrids& HostQuantGrids() { return kHostGrids; }

}  // namespace warpline
