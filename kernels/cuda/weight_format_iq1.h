// IQ1_S and IQ1_M: a grid entry of eight numbers -1, 0 or 1, all plus or minus 1/8, and a 3-bit
// scale. Included by weight_format.h.
#pragma once

namespace warpline::cuda {

// Piece: 12 bytes a lane, 8 and then 4 (codes of 12 bits: index, above it the sign of the eighth;
// of row g, group j at bit 12 * j, then of row g + 8), the scales in nibbles, row g at bit 4 *
// group, row g + 8 above: 4 bytes for each g (IQ1_S) or for each pair of lanes that share scales.
// Super: d of rows g and g + 8 for each g. Table entry: value 2 * p + c, plus 1, at bit 16 * c + 8
// - 2 * p.
template <QuantType kType>
struct IQ1Format {
  static constexpr int kScaleLanes = kType == QuantType::kIQ1S ? 4 : 2;  // that share a scale
  static constexpr PackedShape kShape = {
      .slice_bytes = 384 + 128 / kScaleLanes, .super_bytes = 32, .groups = 4};
  static constexpr int kTableBytes = 8192;

  struct Slice {
    Words<2> codes;
    uint32_t last_codes;
    uint32_t scales;
    uint32_t d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t* super, int lane) {
    return {LoadWords<2>(piece + 8 * lane), LoadWords<1>(piece + 256 + 4 * lane).w[0],
            LoadWords<1>(piece + 384 + lane / kScaleLanes * 4).w[0],
            LoadWords<1>(super + lane / 4 * 4).w[0]};
  }

  // value = d * (2 * s + 1) * (number +- 1/8), where all but d is an integer of at most 135 over 8.
  WL_INLINE static void Decode(const Slice& slice, const uint8_t* table, int group,
                               uint32_t (&step0)[4], uint32_t (&step1)[4]) {
    const uint32_t nibbles = AndOr(slice.scales >> (4 * group), 0x000F000F, kBias1024);
    const uint32_t factors = Fma2(nibbles, Twice(0x4000), Twice(HalfOfInteger(-2047)));
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t factor = BroadcastRow(factors, h);
      const uint32_t d = BroadcastRow(slice.d, h);
      const uint32_t code = CodeTimes4(slice, 4 * h + group);
      // -5 +- 1/8: the entry's numbers come as 4 + 1 + number.
      const uint32_t shift = (code & 0x2000) != 0 ? Twice(0xC520) : Twice(0xC4E0);
      const uint32_t offset = Mul2(factor, shift);
      const uint32_t entry = TableWord(table, code & 0x1FFC);
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const uint32_t number = AndOr(entry << (2 * pair), Twice(0x0300), Twice(0x4400));
        FragmentOf(step0, step1, h, pair) = Mul2(Fma2(number, factor, offset), d);
      }
    }
  }

  static void MakeTable(const QuantGrids& grids, uint8_t* table) {
    for (int index = 0; index < 2048; ++index) {
      uint32_t entry = 0;
      for (int i = 0; i < 8; ++i) {
        const int number = static_cast<int8_t>((grids.iq1[index] >> (8 * i)) & 255);
        entry |= static_cast<uint32_t>(number + 1) << (16 * (i % 2) + 8 - i / 2 * 2);
      }
      memcpy(table + 4 * index, &entry, sizeof(entry));
    }
  }

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t* super) {
    uint32_t codes[4] = {};  // three words and what a shift leaves behind
    uint32_t scales[1] = {};
    uint32_t d[1] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t k = (4LL * slice + j) * kGroupK;
        const uint8_t* const block = FindBlock<Block>(raw, h, k);
        if (block == nullptr) continue;
        const IQ1Code code = ReadCode(block, static_cast<int>(k % 256) / 32, lane % 4);
        const int bit = 12 * (4 * h + j);
        const uint64_t moved = static_cast<uint64_t>(code.code) << (bit % 32);
        codes[bit / 32] |= static_cast<uint32_t>(moved);
        codes[bit / 32 + 1] |= static_cast<uint32_t>(moved >> 32);
        scales[0] |= code.scale << (16 * h + 4 * j);
        d[0] |= j == 0 ? code.d << (16 * h) : 0;
      }
    }
    StoreWords({codes[0], codes[1]}, piece + 8 * lane);
    StoreWords({codes[2]}, piece + 256 + 4 * lane);
    if (lane % kScaleLanes == 0) StoreWords(scales, piece + 384 + lane / kScaleLanes * 4);
    if (lane % 4 == 0 && slice % 2 == 0) StoreWords(d, super + lane);
  }

 private:
  using Block = typename BlockOf<kType>::Type;

  struct IQ1Code {
    uint32_t code;   // index, bit 11 set where the eighth is taken away
    uint32_t scale;  // s
    uint32_t d;      // bits of the block's half
  };

  // The half in the top nibbles of IQ1_M's four scale words, as it is, should it be no number.
  WL_HOST_DEVICE static uint32_t DBits(const uint8_t* scales) {
    uint32_t bits = 0;
    WL_UNROLL
    for (int i = 0; i < 4; ++i) bits |= LoadU16(scales + 2 * i) >> 12 << (4 * i);
    return bits;
  }

  WL_HOST_DEVICE static IQ1Code ReadCode(const uint8_t* block, int ib, int t) {
    const int i = 4 * ib + t;
    if constexpr (kType == QuantType::kIQ1S) {
      const uint32_t qh = LoadU16(block + 34 + 2 * ib);
      return {block[2 + i] | ((qh >> (3 * t)) & 7) << 8 | (qh >> 15) << 11, (qh >> 12) & 7,
              LoadU16(block)};
    } else {
      const uint32_t nibble = (block[32 + i / 2] >> (4 * (i % 2))) & 15;
      const uint8_t* const scales = block + 48;
      const uint32_t step = (LoadU16(scales + 2 * (i / 8)) >> (3 * (i % 8 / 2))) & 7;
      return {block[i] | nibble << 8, step, DBits(scales)};
    }
  }

  // Code `i` (0 to 7) of the three words at bit 2; above it bits of the next one.
  WL_INLINE static uint32_t CodeTimes4(const Slice& slice, int i) {
    const int bit = 12 * i - 2;
    if (bit < 0) return slice.codes.w[0] << 2;
    const int word = bit / 32;
    const uint32_t low = word == 0   ? slice.codes.w[0]
                         : word == 1 ? slice.codes.w[1]
                                     : slice.last_codes;
    const uint32_t high = word == 0 ? slice.codes.w[1] : slice.last_codes;
    return bit % 32 <= 20 ? low >> (bit % 32) : FunnelShiftRight(low, high, bit % 32);
  }
};

template <>
struct WeightFormat<QuantType::kIQ1S> : IQ1Format<QuantType::kIQ1S> {};
template <>
struct WeightFormat<QuantType::kIQ1M> : IQ1Format<QuantType::kIQ1M> {};

}  // namespace warpline::cuda
