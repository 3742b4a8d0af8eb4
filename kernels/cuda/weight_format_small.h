// Codes of one to three bits: Q1_0, Q2_0, TQ1_0, TQ2_0, Q3_K. Included by weight_format.h.
#pragma once

namespace warpline::cuda {

// Piece: 8 bytes a lane of signs (row g, row g + 8; group j at bit 4 * j, set for -d), 4 bytes of d
// for each g (rows g and g + 8).
template <>
struct WeightFormat<QuantType::kQ1_0> {
  static constexpr PackedShape kShape = {.slice_bytes = 288, .super_bytes = 0, .groups = 4};
  static constexpr int kTableBytes = 0;

  struct Slice {
    Words<2> signs;
    uint32_t d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t*, int lane) {
    return {LoadWords<2>(piece + 8 * lane), LoadWords<1>(piece + 256 + lane / 4 * 4).w[0]};
  }

  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t d = BroadcastRow(slice.d, h);
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const uint32_t signs = slice.signs.w[h] << (15 - 4 * group - pair);
        FragmentOf(step0, step1, h, pair) = d ^ (signs & 0x80008000);
      }
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t*) {
    uint32_t signs[2] = {};
    uint32_t d[1] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint8_t* const block = FindBlock<BlockQ1_0>(raw, h, 128LL * slice);
      if (block == nullptr) continue;
      d[0] |= LoadU16(block) << (16 * h);
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const Codes8 codes = ReadCodes<QuantType::kQ1_0>(block, 32 * j + lane % 4 * 8);
        signs[h] |= (PackFields(codes, 0, 1) ^ 0x000F000F) << (4 * j);
      }
    }
    StoreWords(signs, piece + 8 * lane);
    if (lane % 4 == 0) StoreWords(d, piece + 256 + lane);
  }
};

// (code - 1) * d. Piece: 16 bytes a lane of codes (two words of row g, two of row g + 8; see
// TwoBitPair); Q2_0: 8 bytes of d for each g (a word for each 64 values: rows g and g + 8). Super
// (the others): d of rows g and g + 8 for each g.
template <QuantType kType>
struct TernaryFormat {
  static constexpr bool kHasSuper = kType != QuantType::kQ2_0;
  static constexpr PackedShape kShape = {
      .slice_bytes = kHasSuper ? 512 : 576, .super_bytes = kHasSuper ? 32 : 0, .groups = 4};
  static constexpr int kTableBytes = 0;

  struct Slice {
    Words<4> codes;
    Words<2> d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t* super, int lane) {
    Slice slice;
    slice.codes = LoadWords<4>(piece + 16 * lane);
    if constexpr (kHasSuper) {
      slice.d.w[0] = slice.d.w[1] = LoadWords<1>(super + lane / 4 * 4).w[0];
    } else {
      slice.d = LoadWords<2>(piece + 512 + lane / 4 * 8);
    }
    return slice;
  }

  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t d = BroadcastRow(slice.d.w[group / 2], h);
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const uint32_t fields =
            TwoBitPair(slice.codes.w[2 * h + group / 2], group, pair, kBias1024);
        FragmentOf(step0, step1, h, pair) = Mul2(Unbiased<1>(fields, 2 * pair), d);
      }
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t* super) {
    uint32_t codes[4] = {};
    uint32_t d[2] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t k = (4LL * slice + j) * kGroupK;
        const uint8_t* const block = FindBlock<Block>(raw, h, k);
        if (block == nullptr) continue;
        const int first = static_cast<int>(k % Block::kValues) + lane % 4 * 8;
        const Codes8 raw_codes = ReadCodes<kType>(block, first);
        codes[2 * h + j / 2] |= PackFields(raw_codes, 0, 2) << (8 * (j % 2));
        const uint32_t scale = LoadU16(block + (kHasSuper ? Block::kBytes - 2 : 0));
        d[j / 2] |= j % 2 == 0 ? scale << (16 * h) : 0;
      }
    }
    StoreWords(codes, piece + 16 * lane);
    if (lane % 4 != 0) return;
    if constexpr (!kHasSuper) {
      StoreWords(d, piece + 512 + 2 * lane);
    } else if (slice % 2 == 0) {
      StoreWords({d[0]}, super + lane);
    }
  }

 private:
  using Block = typename BlockOf<kType>::Type;
};

template <>
struct WeightFormat<QuantType::kQ2_0> : TernaryFormat<QuantType::kQ2_0> {};
template <>
struct WeightFormat<QuantType::kTQ1_0> : TernaryFormat<QuantType::kTQ1_0> {};
template <>
struct WeightFormat<QuantType::kTQ2_0> : TernaryFormat<QuantType::kTQ2_0> {};

// d * scale * (code - 4), a product of integers of at most 128. Piece: 16 bytes a lane of the
// codes' low pairs of bits as above, 8 bytes a lane of third bits (row g, row g + 8; group j at bit
// 4 * j), 8 bytes for each pair of lanes that share scales: byte 2 * group + h, the scale plus 128.
// Super: d of rows g and g + 8 for each g.
template <>
struct WeightFormat<QuantType::kQ3K> {
  static constexpr PackedShape kShape = {.slice_bytes = 896, .super_bytes = 32, .groups = 4};
  static constexpr int kTableBytes = 0;

  struct Slice {
    Words<4> codes;
    Words<2> third;
    Words<2> scales;
    uint32_t d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t* super, int lane) {
    return {LoadWords<4>(piece + 16 * lane), LoadWords<2>(piece + 512 + 8 * lane),
            LoadWords<2>(piece + 768 + lane / 2 * 8), LoadWords<1>(super + lane / 4 * 4).w[0]};
  }

  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t scale = ByteScale(slice.scales.w[group / 2], group % 2 * 2 + h);
      const uint32_t d = BroadcastRow(slice.d, h);
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const int target = 2 * pair + 2;
        const uint32_t low = TwoBitPair(slice.codes.w[2 * h + group / 2], group, pair, kBias1024);
        const uint32_t fields =
            AndOr(Shift(slice.third.w[h], 4 * group + pair - target), Twice(1u << target), low);
        FragmentOf(step0, step1, h, pair) = Mul2(Mul2(Unbiased<4>(fields, 2 * pair), scale), d);
      }
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t* super) {
    uint32_t codes[4] = {};
    uint32_t third[2] = {};
    uint32_t scales[2] = {};
    uint32_t d[1] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t k = (4LL * slice + j) * kGroupK;
        const uint8_t* const block = FindBlock<BlockQ3K>(raw, h, k);
        if (block == nullptr) continue;
        const int first = static_cast<int>(k % 256) + lane % 4 * 8;
        const Codes8 raw_codes = ReadCodes<QuantType::kQ3K>(block, first);
        codes[2 * h + j / 2] |= PackFields(raw_codes, 0, 2) << (8 * (j % 2));
        third[h] |= PackFields(raw_codes, 2, 1) << (4 * j);
        const int scale = LoadQ3KScale(block + 96, first / 16) + 128;
        scales[j / 2] |= static_cast<uint32_t>(scale) << (16 * (j % 2) + 8 * h);
        d[0] |= j == 0 ? LoadU16(block + 108) << (16 * h) : 0;
      }
    }
    StoreWords(codes, piece + 16 * lane);
    StoreWords(third, piece + 512 + 8 * lane);
    if (lane % 2 == 0) StoreWords(scales, piece + 768 + 4 * lane);
    if (lane % 4 == 0 && slice % 2 == 0) StoreWords(d, super + lane);
  }
};

}  // namespace warpline::cuda
