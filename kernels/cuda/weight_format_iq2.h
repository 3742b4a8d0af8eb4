// IQ2_XXS, IQ2_XS, IQ2_S: a grid entry of eight magnitudes, eight signs, a 4-bit scale. Included by
// weight_format.h.
#pragma once

namespace warpline::cuda {

// A grid of eight values: entry e of the file, as bytes.
template <QuantType kType>
struct IQ2Grid;
template <>
struct IQ2Grid<QuantType::kIQ2XXS> {
  static constexpr int kEntries = 256;
  static const uint64_t* Of(const QuantGrids& grids) { return grids.iq2_xxs; }
};
template <>
struct IQ2Grid<QuantType::kIQ2XS> {
  static constexpr int kEntries = 512;
  static const uint64_t* Of(const QuantGrids& grids) { return grids.iq2_xs; }
};
template <>
struct IQ2Grid<QuantType::kIQ2S> {
  static constexpr int kEntries = 1024;
  static const uint64_t* Of(const QuantGrids& grids) { return grids.iq2_s; }
};

// What the file keeps for lane t's eight values of group `ib` (0 to 7) of a block. `scale` is that
// of the lane's sixteen values (IQ2_XXS: of the group).
struct IQ2Code {
  uint32_t index;
  uint32_t signs;
  uint32_t scale;
};

template <QuantType kType>
WL_HOST_DEVICE IQ2Code ReadIQ2Code(const uint8_t* block, int ib, int t) {
  const int i = 4 * ib + t;
  if constexpr (kType == QuantType::kIQ2XXS) {
    const uint32_t signs = LoadU32(block + 6 + 8 * ib);
    return {block[2 + 8 * ib + t], SignMaskFrom7((signs >> (7 * t)) & 127), signs >> 28};
  } else if constexpr (kType == QuantType::kIQ2XS) {
    const uint32_t word = LoadU16(block + 2 + 2 * i);
    return {word & 511, SignMaskFrom7(word >> 9), (block[66 + ib] >> (t / 2 * 4)) & 15u};
  } else {
    const uint32_t upper = (block[66 + ib] >> (2 * t)) & 3;
    return {block[2 + i] | upper << 8, block[34 + i], (block[74 + ib] >> (t / 2 * 4)) & 15u};
  }
}

// Signs of eight values as a row's plane holds them: value 2 * p + c at bit 16 * c + p, then moved
// to 4 * group.
WL_HOST_DEVICE inline uint32_t PackSigns(uint32_t signs) {
  uint32_t word = 0;
  WL_UNROLL
  for (int i = 0; i < 8; ++i) word |= ((signs >> i) & 1) << (16 * (i % 2) + i / 2);
  return word;
}

// The signs of a pair, in the sign bits of its halves.
WL_INLINE uint32_t SignsOfPair(uint32_t plane, int group, int pair) {
  return (plane << (15 - 4 * group - pair)) & 0x80008000;
}

// Piece: 16 bytes a lane (low index bytes of the four groups of row g and of row g + 8, signs of
// row g and of row g + 8); IQ2_XS: a byte a lane with the ninth index bits, bit 4 * h + group;
// IQ2_S: two bytes a lane with the two upper index bits, bit 8 * h + 2 * group; then the 4-bit
// scales, row g at bit 4 * group, row g + 8 above: 4 bytes for each g (IQ2_XXS) or for each pair of
// lanes that share scales. Super: d of rows g and g + 8 for each g.
template <QuantType kType>
struct IQ2Format {
  static constexpr int kUpperBits = kType == QuantType::kIQ2XXS  ? 0
                                    : kType == QuantType::kIQ2XS ? 1
                                                                 : 2;
  static constexpr int kScaleLanes = kType == QuantType::kIQ2XXS ? 4 : 2;  // that share a scale
  static constexpr int kScalesAt = 512 + 32 * kUpperBits;
  static constexpr PackedShape kShape = {
      .slice_bytes = kScalesAt + 128 / kScaleLanes, .super_bytes = 32, .groups = 4};
  static constexpr int kTableBytes = 8 * IQ2Grid<kType>::kEntries;

  struct Slice {
    Words<4> codes;
    uint32_t upper;
    uint32_t scales;
    uint32_t d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t* super, int lane) {
    return {LoadWords<4>(piece + 16 * lane), LoadSmall<kUpperBits>(piece + 512, lane),
            LoadWords<1>(piece + kScalesAt + lane / kScaleLanes * 4).w[0],
            LoadWords<1>(super + lane / 4 * 4).w[0]};
  }

  // value = d * (2 * s + 1) / 8 * magnitude; the second product is of integers of at most 31 and
  // 43, over 8: exact.
  WL_INLINE static void Decode(const Slice& slice, const uint8_t* table, int group,
                               uint32_t (&step0)[4], uint32_t (&step1)[4]) {
    // 256 + s / 4 - 255.875.
    const uint32_t quarters = AndOr(slice.scales >> (4 * group), 0x000F000F, Twice(0x5C00));
    const uint32_t factors = Add2(quarters, Twice(0xDBFF));
    const uint32_t offsets = Mul2(factors, Twice(HalfOfInteger(-1024)));
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t factor = BroadcastRow(factors, h);
      const uint32_t offset = BroadcastRow(offsets, h);
      const uint32_t d = BroadcastRow(slice.d, h);
      const Words<2> entry = TableWords2(table, Address(slice, group, h));
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const uint32_t biased =
            Permute(entry.w[pair / 2], Twice(0x6464), pair % 2 == 0 ? 0x4140 : 0x4342);
        FragmentOf(step0, step1, h, pair) =
            Mul2(Fma2(biased, factor, offset), d) ^ SignsOfPair(slice.codes.w[2 + h], group, pair);
      }
    }
  }

  static void MakeTable(const QuantGrids& grids, uint8_t* table) {
    memcpy(table, IQ2Grid<kType>::Of(grids), kTableBytes);
  }

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t* super) {
    uint32_t codes[4] = {};
    uint32_t upper = 0;
    uint32_t scales[1] = {};
    uint32_t d[1] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t k = (4LL * slice + j) * kGroupK;
        const uint8_t* const block = FindBlock<Block>(raw, h, k);
        if (block == nullptr) continue;
        const IQ2Code code = ReadIQ2Code<kType>(block, static_cast<int>(k % 256) / 32, lane % 4);
        codes[h] |= (code.index & 255) << (8 * j);
        codes[2 + h] |= PackSigns(code.signs) << (4 * j);
        upper |= (code.index >> 8) << (kUpperBits * (4 * h + j));
        scales[0] |= code.scale << (16 * h + 4 * j);
        d[0] |= j == 0 ? LoadU16(block) << (16 * h) : 0;
      }
    }
    StoreWords(codes, piece + 16 * lane);
    WL_UNROLL
    for (int i = 0; i < kUpperBits; ++i) {
      piece[512 + kUpperBits * lane + i] = static_cast<uint8_t>(upper >> (8 * i));
    }
    if (lane % kScaleLanes == 0) StoreWords(scales, piece + kScalesAt + lane / kScaleLanes * 4);
    if (lane % 4 == 0 && slice % 2 == 0) StoreWords(d, super + lane);
  }

 private:
  using Block = typename BlockOf<kType>::Type;

  WL_INLINE static uint32_t Address(const Slice& slice, int group, int h) {
    uint32_t address = Shift(slice.codes.w[h], 8 * group - 3) & 0x7F8;
    if constexpr (kUpperBits > 0) {
      constexpr uint32_t kMask = ((1u << kUpperBits) - 1) << 11;
      address = AndOr(Shift(slice.upper, kUpperBits * (4 * h + group) - 11), kMask, address);
    }
    return address;
  }
};

template <>
struct WeightFormat<QuantType::kIQ2XXS> : IQ2Format<QuantType::kIQ2XXS> {};
template <>
struct WeightFormat<QuantType::kIQ2XS> : IQ2Format<QuantType::kIQ2XS> {};
template <>
struct WeightFormat<QuantType::kIQ2S> : IQ2Format<QuantType::kIQ2S> {};

}  // namespace warpline::cuda
