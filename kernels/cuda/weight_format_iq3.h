// IQ3_XXS and IQ3_S packed: 12-bit codes look up four signed bytes at once in a table of 16 KB.
// Included by weight_format.h.
#pragma once

namespace warpline::cuda {

// What differs: how a code is made of a grid index and four signs, and what the integer factor of a
// 4-bit scale is.
template <QuantType kType>
struct IQ3Traits;

// Code: 8 bits of index, four signs. value = d * (s + 1 / 2) * (grid / 2), grid / 2 at most 31.
template <>
struct IQ3Traits<QuantType::kIQ3XXS> {
  static constexpr int kIndexBits = 8;
  static constexpr uint32_t kFactorBase = Twice(0x3C00);   // s + 1024 times 1
  static constexpr uint32_t kFactorShift = Twice(0xE3FF);  // less 1023.5
  static int Magnitude(const QuantGrids& grids, int index, int j) {
    return static_cast<int>((grids.iq3_xxs[index] >> (8 * j)) & 255) / 2;
  }
};

// Code: 9 bits of index, three signs; the fourth sign lies in a plane of its own. value = d * (2 *
// s
// + 1) * grid, grid at most 15.
template <>
struct IQ3Traits<QuantType::kIQ3S> {
  static constexpr int kIndexBits = 9;
  static constexpr uint32_t kFactorBase = Twice(0x4000);  // s + 1024 times 2
  static constexpr uint32_t kFactorShift = Twice(HalfOfInteger(-2047));
  static int Magnitude(const QuantGrids& grids, int index, int j) {
    return static_cast<int>((grids.iq3_s[index] >> (8 * j)) & 255);
  }
};

// Four values of the file: grid index and signs, bit j for value j.
struct IQ3Code {
  uint32_t index;
  uint32_t signs;
};

// Piece: 16 bytes a lane (words 0 to 2 of row g, word 0 of row g + 8), 8 bytes a lane (words 1 and
// 2 of row g + 8), IQ3_S: 2 bytes a lane of fourth signs (bit 8 * h + 2 * group + e), 4 bytes for
// each g (the 4-bit scales: row g in bits 4 * group, row g + 8 above). Code e of group j lies at
// bit 24 * j + 12 * e of its row's three words. Super: the half d of rows g and g + 8 for each g.
template <QuantType kType>
struct IQ3Format {
  static constexpr bool kHasPlane = kType == QuantType::kIQ3S;
  static constexpr int kScalesAt = kHasPlane ? 832 : 768;
  static constexpr PackedShape kShape = {
      .slice_bytes = kScalesAt + 32, .super_bytes = 32, .groups = 4};
  static constexpr int kTableBytes = 16384;

  struct Slice {
    Words<3> codes[2];
    uint32_t fourth;
    uint32_t scales;
    uint32_t d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t* super, int lane) {
    const Words<4> first = LoadWords<4>(piece + 16 * lane);
    const Words<2> second = LoadWords<2>(piece + 512 + 8 * lane);
    return {{{{first.w[0], first.w[1], first.w[2]}}, {{first.w[3], second.w[0], second.w[1]}}},
            LoadSmall < kHasPlane ? 2 : 0 > (piece + 768, lane),
            LoadWords<1>(piece + kScalesAt + lane / 4 * 4).w[0],
            LoadWords<1>(super + lane / 4 * 4).w[0]};
  }

  // The product of the factor and the grid's integer is exact, so the one with d rounds once.
  WL_INLINE static void Decode(const Slice& slice, const uint8_t* table, int group,
                               uint32_t (&step0)[4], uint32_t (&step1)[4]) {
    const uint32_t nibbles = AndOr(slice.scales >> (4 * group), 0x000F000F, kBias1024);
    const uint32_t factors = Fma2(nibbles, Traits::kFactorBase, Traits::kFactorShift);
    const uint32_t offsets = Mul2(factors, Twice(HalfOfInteger(-1152)));  // exact
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t factor = BroadcastRow(factors, h);
      const uint32_t offset = BroadcastRow(offsets, h);
      const uint32_t d = BroadcastRow(slice.d, h);
      WL_UNROLL
      for (int e = 0; e < 2; ++e) {
        const uint32_t entry = TableWord(table, Address(slice.codes[h], 2 * group + e));
        // 1024 + 128 + integer as halves, then the offset away and the factor on.
        const uint32_t low = Permute(entry, Twice(0x6464), 0x4140);
        const uint32_t high = Permute(entry, Twice(0x6464), 0x4342);
        uint32_t signs = 0;
        if constexpr (kHasPlane) {
          signs = (slice.fourth << (31 - 8 * h - 2 * group - e)) & 0x80000000;
        }
        FragmentOf(step0, step1, h, 2 * e) = Mul2(Fma2(low, factor, offset), d);
        FragmentOf(step0, step1, h, 2 * e + 1) = Mul2(Fma2(high, factor, offset), d) ^ signs;
      }
    }
  }

  // Entry `code`: four bytes 128 + integer, negated where the code's sign bit is set.
  static void MakeTable(const QuantGrids& grids, uint8_t* table) {
    for (int code = 0; code < 4096; ++code) {
      for (int j = 0; j < 4; ++j) {
        const int magnitude = Traits::Magnitude(grids, code & ((1 << Traits::kIndexBits) - 1), j);
        const bool is_negative = ((code >> (Traits::kIndexBits + j)) & 1) != 0;
        table[4 * code + j] = static_cast<uint8_t>(128 + (is_negative ? -magnitude : magnitude));
      }
    }
  }

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t* super) {
    uint32_t codes[2][4] = {};  // three words a row and what a shift leaves behind
    uint32_t fourth = 0;
    uint32_t scales[1] = {};
    uint32_t d[1] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t k = (4LL * slice + j) * kGroupK;
        const uint8_t* const block = FindBlock<Block>(raw, h, k);
        if (block == nullptr) continue;
        const int ib = static_cast<int>(k % 256) / 32;
        scales[0] |= ReadScale(block, ib) << (16 * h + 4 * j);
        d[0] |= j == 0 ? LoadU16(block) << (16 * h) : 0;
        WL_UNROLL
        for (int e = 0; e < 2; ++e) {
          const IQ3Code four = ReadCode(block, ib, lane % 4, e);
          const uint64_t code = (four.index | four.signs << Traits::kIndexBits) & 0xFFF;
          const int bit = 24 * j + 12 * e;
          codes[h][bit / 32] |= static_cast<uint32_t>(code << (bit % 32));
          codes[h][bit / 32 + 1] |= static_cast<uint32_t>((code << (bit % 32)) >> 32);
          fourth |= (four.signs >> 3) << (8 * h + 2 * j + e);
        }
      }
    }
    StoreWords({codes[0][0], codes[0][1], codes[0][2], codes[1][0]}, piece + 16 * lane);
    StoreWords({codes[1][1], codes[1][2]}, piece + 512 + 8 * lane);
    if constexpr (kHasPlane) {
      piece[768 + 2 * lane] = static_cast<uint8_t>(fourth);
      piece[769 + 2 * lane] = static_cast<uint8_t>(fourth >> 8);
    }
    if (lane % 4 != 0) return;
    StoreWords(scales, piece + kScalesAt + lane);
    if (slice % 2 == 0) StoreWords(d, super + lane);
  }

 private:
  using Block = typename BlockOf<kType>::Type;
  using Traits = IQ3Traits<kType>;

  WL_HOST_DEVICE static uint32_t ReadScale(const uint8_t* block, int ib) {
    if constexpr (kHasPlane) return (block[106 + ib / 2] >> (ib % 2 * 4)) & 15;
    return LoadU32(block + 66 + 4 * ib) >> 28;
  }

  // Values 4 * e to 4 * e + 3 of lane t's eight of group `ib` (0 to 7) of a block.
  WL_HOST_DEVICE static IQ3Code ReadCode(const uint8_t* block, int ib, int t, int e) {
    const uint32_t low = block[2 + 8 * ib + 2 * t + e];
    if constexpr (kHasPlane) {
      const uint32_t ninth = (block[66 + ib] >> (2 * t + e)) & 1;
      return {low | ninth << 8, (block[74 + 4 * ib + t] >> (4 * e)) & 15u};
    }
    const uint32_t signs = SignMaskFrom7((LoadU32(block + 66 + 4 * ib) >> (7 * t)) & 127);
    return {low, (signs >> (4 * e)) & 15};
  }

  // Byte offset in the table of code `i` (0 to 7).
  WL_INLINE static uint32_t Address(const Words<3>& words, int i) {
    const int bit = 12 * i - 2;  // entries are 4 bytes: the code is wanted at bit 2
    if (bit < 0) return (words.w[0] << 2) & 0x3FFC;
    const int word = bit / 32;
    const uint32_t low = words.w[word];
    const bool crosses = bit % 32 > 18;
    if (!crosses) return (low >> (bit % 32)) & 0x3FFC;
    return FunnelShiftRight(low, words.w[word < 2 ? word + 1 : 2], bit % 32) & 0x3FFC;
  }
};

template <>
struct WeightFormat<QuantType::kIQ3XXS> : IQ3Format<QuantType::kIQ3XXS> {};
template <>
struct WeightFormat<QuantType::kIQ3S> : IQ3Format<QuantType::kIQ3S> {};

}  // namespace warpline::cuda
