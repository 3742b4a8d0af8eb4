// Codes of two to six bits in packed words: pairs of fields, one in each half of a word, so that a
// mask makes two small integers of them at once. Included by weight_format.h.
#pragma once

#include "kernels/cuda/half_math.h"
#include "kernels/cuda/raw_codes.h"

namespace warpline::cuda {

// What makes a small integer in the low bits of a half 1024 + that integer.
constexpr uint32_t kBias1024 = Twice(0x6400);

// Fields at bit `bit` (a constant) over kBias1024 as integers less kBias.
template <int kBias>
WL_INLINE uint32_t Unbiased(uint32_t fields, int bit) {
  if (bit == 0) return Add2(fields, Twice(HalfOfInteger(-1024 - kBias)));
  if (bit == 2) return Fma2(fields, Twice(0x3400), Twice(HalfOfInteger(-256 - kBias)));
  if (bit == 4) return Fma2(fields, Twice(0x2C00), Twice(HalfOfInteger(-64 - kBias)));
  if (bit == 5) return Fma2(fields, Twice(0x2800), Twice(HalfOfInteger(-32 - kBias)));
  return Fma2(fields, Twice(0x2400), Twice(HalfOfInteger(-16 - kBias)));  // bit 6
}

// Two-bit fields: group j of a row at bit 8 * (j % 2) of word j / 2, as PackFields lays its pairs.
// Pair `pair` comes at bit 2 * pair, over `bits`.
WL_INLINE uint32_t TwoBitPair(uint32_t word, int group, int pair, uint32_t bits) {
  return AndOr(word >> (8 * (group % 2)), Twice(3u << (2 * pair)), bits);
}

// A lane's 16 pairs of codes of four bits, or of five: four words, and a fifth one.
struct CodeWords {
  Words<4> w;
  uint32_t last;
};

// Four bits: group j in word j, as PackFields lays its pairs. Five bits: pairs 0 to 2 of group j at
// bits 0, 5 and 10 of word j; pair 3 of groups 0 to 2 at those bits of the last word; bit b of pair
// 3 of group 3 at bit 15 of word b.
template <bool kFifth>
struct CodeFields {
  // The bit at which Pair leaves a pair's fields.
  WL_HOST_DEVICE static constexpr int Bit(int group, int pair) {
    if (!kFifth) return pair % 2 * 4;
    return (pair < 3 ? pair : group) == 1 ? 5 : 0;
  }

  // Pair `pair` of group `group`, set in `bits`.
  WL_INLINE static uint32_t Pair(const CodeWords& words, int group, int pair, uint32_t bits) {
    if constexpr (!kFifth) {
      const uint32_t word = words.w.w[group];
      return AndOr(pair < 2 ? word : word >> 8, Twice(15u << Bit(group, pair)), bits);
    }
    if (pair == 3 && group == 3) {
      uint32_t fields = AndOr(words.last >> 11, Twice(16), bits);
      WL_UNROLL
      for (int b = 0; b < 4; ++b) {
        fields = AndOr(words.w.w[b] >> (15 - b), Twice(1u << b), fields);
      }
      return fields;
    }
    const uint32_t word = pair < 3 ? words.w.w[group] : words.last;
    const int slot = pair < 3 ? pair : group;
    return AndOr(slot < 2 ? word : word >> 10, Twice(31u << Bit(group, pair)), bits);
  }

  // Adds the eight codes of a group to `words`, which begin as zeros.
  WL_HOST_DEVICE static void Pack(const Codes8& codes, int group, CodeWords& words) {
    if constexpr (kFifth) {
      PackFive(codes, group, words);
    } else {
      words.w.w[group] |= PackFields(codes, 0, 4);
    }
  }

 private:
  WL_HOST_DEVICE static void PackFive(const Codes8& codes, int group, CodeWords& words) {
    WL_UNROLL
    for (int i = 0; i < 8; ++i) {
      const int pair = i / 2, at = 16 * (i % 2);
      if (pair == 3 && group == 3) {
        WL_UNROLL
        for (int b = 0; b < 5; ++b) {
          (b < 4 ? words.w.w[b] : words.last) |= ((codes.v[i] >> b) & 1) << (at + 15);
        }
      } else {
        const int slot = pair < 3 ? pair : group;
        (pair < 3 ? words.w.w[group] : words.last) |= codes.v[i] << (at + 5 * slot);
      }
    }
  }
};

}  // namespace warpline::cuda
