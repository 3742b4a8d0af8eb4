// IQ3_XXS packed: 12-bit codes (8 bits of grid index, four signs) that look up four signed bytes in
// a table of 16 KB. Included by weight_format.h.
#pragma once

namespace warpline::cuda {

// Piece: 16 bytes a lane (words 0 to 2 of row g, word 0 of row g + 8), 8 bytes a lane (words 1 and
// 2 of row g + 8), 4 bytes for each g (the 4-bit scales: row g in bits 4 * group, row g + 8 above).
// Code e of group j lies at bit 24 * j + 12 * e of its row's three words. Super: the half d of rows
// g and g + 8 for each g.
template <>
struct WeightFormat<QuantType::kIQ3XXS> {
  static constexpr PackedShape kShape = {.slice_bytes = 800, .super_bytes = 32, .groups = 4};
  static constexpr int kTableBytes = 16384;

  struct Slice {
    Words<3> codes[2];
    uint32_t scales;
    uint32_t d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t* super, int lane) {
    const Words<4> first = LoadWords<4>(piece + 16 * lane);
    const Words<2> second = LoadWords<2>(piece + 512 + 8 * lane);
    return {{{{first.w[0], first.w[1], first.w[2]}}, {{first.w[3], second.w[0], second.w[1]}}},
            LoadWords<1>(piece + 768 + lane / 4 * 4).w[0],
            LoadWords<1>(super + lane / 4 * 4).w[0]};
  }

  // value = d * (s + 0.5) * (grid / 2), with grid / 2 an integer of at most 31: the second product
  // is exact, so the first one rounds once.
  WL_INLINE static void Decode(const Slice& slice, const uint8_t* table, int group,
                               uint32_t (&step0)[4], uint32_t (&step1)[4]) {
    const uint32_t nibbles = AndOr(slice.scales >> (4 * group), 0x000F000F, kBias1024);
    const uint32_t factors = Add2(nibbles, Twice(0xE3FF));  // 1024 + s - 1023.5
    const uint32_t offsets = Mul2(factors, Twice(0xE480));  // times -1152, exact
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t factor = h == 0 ? BroadcastLow(factors) : BroadcastHigh(factors);
      const uint32_t offset = h == 0 ? BroadcastLow(offsets) : BroadcastHigh(offsets);
      const uint32_t d = h == 0 ? BroadcastLow(slice.d) : BroadcastHigh(slice.d);
      WL_UNROLL
      for (int e = 0; e < 2; ++e) {
        const uint32_t entry = TableWord(table, Address(slice.codes[h], 2 * group + e));
        uint32_t(&step)[4] = e == 0 ? step0 : step1;
        // 1024 + 128 + value as halves, then the offset away and the factor on.
        step[h] = Mul2(Fma2(Permute(entry, Twice(0x6464), 0x4140), factor, offset), d);
        step[h + 2] = Mul2(Fma2(Permute(entry, Twice(0x6464), 0x4342), factor, offset), d);
      }
    }
  }

  // Entry index + 256 * signs: four bytes 128 + (grid / 2, negated where its sign bit is set).
  static void MakeTable(const QuantGrids& grids, uint8_t* table) {
    for (int code = 0; code < 4096; ++code) {
      for (int j = 0; j < 4; ++j) {
        const int magnitude = static_cast<int>((grids.iq3_xxs[code & 255] >> (8 * j)) & 255) / 2;
        const bool is_negative = ((code >> (8 + j)) & 1) != 0;
        table[4 * code + j] = static_cast<uint8_t>(128 + (is_negative ? -magnitude : magnitude));
      }
    }
  }

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t* super) {
    const int t = lane % 4;
    uint32_t codes[8] = {};  // two rows of three words, padded to four
    uint32_t scales[1] = {0};
    uint32_t d[1] = {0};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      if (raw.rows[h] == nullptr) continue;
      const uint8_t* const block = raw.rows[h] + static_cast<int64_t>(slice / 2) * Block::kBytes;
      d[0] |= LoadU16(block) << (16 * h);
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int ib = slice % 2 * 4 + j;
        const uint32_t signs_and_scale = LoadU32(block + 66 + 4 * ib);
        const uint32_t signs = SignMaskFrom7((signs_and_scale >> (7 * t)) & 127);
        scales[0] |= (signs_and_scale >> 28) << (16 * h + 4 * j);
        WL_UNROLL
        for (int e = 0; e < 2; ++e) {
          const uint64_t code = block[2 + 8 * ib + 2 * t + e] | ((signs >> (4 * e)) & 15) << 8;
          const int bit = 24 * j + 12 * e;
          const uint64_t moved = code << (bit % 32);
          codes[4 * h + bit / 32] |= static_cast<uint32_t>(moved);
          codes[4 * h + bit / 32 + 1] |= static_cast<uint32_t>(moved >> 32);
        }
      }
    }
    StoreWords({codes[0], codes[1], codes[2], codes[4]}, piece + 16 * lane);
    StoreWords({codes[5], codes[6]}, piece + 512 + 8 * lane);
    if (t != 0) return;
    StoreWords(scales, piece + 768 + lane);
    if (slice % 2 == 0) StoreWords(d, super + lane);
  }

 private:
  using Block = BlockIQ3XXS;

  // Byte offset of code `i` (0 to 7) in the table.
  WL_INLINE static uint32_t Address(const Words<3>& words, int i) {
    const int bit = 12 * i - 2;  // entries are 4 bytes: the code is wanted at bit 2
    if (bit < 0) return (words.w[0] << 2) & 0x3FFC;
    const int word = bit / 32;
    const bool crosses = bit % 32 > 18;
    const uint32_t low = words.w[word];
    if (!crosses) return (low >> (bit % 32)) & 0x3FFC;
    return FunnelShiftRight(low, words.w[word < 2 ? word + 1 : 2], bit % 32) & 0x3FFC;
  }
};

// A 9-bit index and four signs for each four values, a 4-bit scale for each 32. Piece: 16 bytes a
// lane of low index bytes (two words of row g: byte 2 * group + e, two of row g + 8), 8 bytes a
// lane of signs (row g, row g + 8; see SignsOfPair), two bytes a lane with the ninth index bits
// (bit 8 * h + 2 * group + e), 4 bytes of scales for each g (row g at bit 4 * group, row g + 8
// above). Super: the half d of rows g and g + 8 for each g.
template <>
struct WeightFormat<QuantType::kIQ3S> {
  static constexpr PackedShape kShape = {.slice_bytes = 864, .super_bytes = 32, .groups = 4};
  static constexpr int kTableBytes = 2048;

  struct Slice {
    Words<4> codes;
    Words<2> signs;
    uint32_t ninth;
    uint32_t scales;
    uint32_t d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t* super, int lane) {
    return {LoadWords<4>(piece + 16 * lane), LoadWords<2>(piece + 512 + 8 * lane),
            LoadSmall<2>(piece + 768, lane), LoadWords<1>(piece + 832 + lane / 4 * 4).w[0],
            LoadWords<1>(super + lane / 4 * 4).w[0]};
  }

  // value = d * ((2 * s + 1) * magnitude), integers of at most 31 and 15.
  WL_INLINE static void Decode(const Slice& slice, const uint8_t* table, int group,
                               uint32_t (&step0)[4], uint32_t (&step1)[4]) {
    const uint32_t nibbles = AndOr(slice.scales >> (4 * group), 0x000F000F, kBias1024);
    const uint32_t factors = Fma2(nibbles, Twice(0x4000), Twice(HalfOfInteger(-2047)));
    const uint32_t offsets = Mul2(factors, Twice(HalfOfInteger(-1024)));
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t factor = BroadcastRow(factors, h);
      const uint32_t offset = BroadcastRow(offsets, h);
      const uint32_t d = BroadcastRow(slice.d, h);
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const int e = pair / 2;
        const uint32_t index =
            Shift(slice.codes.w[2 * h + group / 2], group % 2 * 16 + 8 * e - 2) & 0x3FC;
        const uint32_t entry =
            TableWord(table, AndOr(Shift(slice.ninth, 8 * h + 2 * group + e - 10), 0x400, index));
        const uint32_t biased = Permute(entry, Twice(0x6464), pair % 2 == 0 ? 0x4140 : 0x4342);
        FragmentOf(step0, step1, h, pair) =
            Mul2(Fma2(biased, factor, offset), d) ^ SignsOfPair(slice.signs.w[h], group, pair);
      }
    }
  }

  static void MakeTable(const QuantGrids& grids, uint8_t* table) {
    memcpy(table, grids.iq3_s, kTableBytes);
  }

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t* super) {
    const int t = lane % 4;
    uint32_t codes[4] = {};
    uint32_t signs[2] = {};
    uint32_t ninth = 0;
    uint32_t scales[1] = {};
    uint32_t d[1] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t k = (4LL * slice + j) * kGroupK;
        const uint8_t* const block = FindBlock<BlockIQ3S>(raw, h, k);
        if (block == nullptr) continue;
        const int ib = static_cast<int>(k % 256) / 32;
        codes[2 * h + j / 2] |= LoadU16(block + 2 + 8 * ib + 2 * t) << (16 * (j % 2));
        ninth |= ((block[66 + ib] >> (2 * t)) & 3u) << (8 * h + 2 * j);
        signs[h] |= PackSigns(block[74 + 4 * ib + t]) << (4 * j);
        scales[0] |= ((block[106 + ib / 2] >> (ib % 2 * 4)) & 15u) << (16 * h + 4 * j);
        d[0] |= j == 0 ? LoadU16(block) << (16 * h) : 0;
      }
    }
    StoreWords(codes, piece + 16 * lane);
    StoreWords(signs, piece + 512 + 8 * lane);
    piece[768 + 2 * lane] = static_cast<uint8_t>(ninth);
    piece[769 + 2 * lane] = static_cast<uint8_t>(ninth >> 8);
    if (t != 0) return;
    StoreWords(scales, piece + 832 + lane);
    if (slice % 2 == 0) StoreWords(d, super + lane);
  }
};

}  // namespace warpline::cuda
