// Formats whose value is scale * code + minimum: Q4_1, Q5_1, Q2_K, Q4_K, Q5_K. Their decoders round
// the float first and then the half; so one float fused multiply-add, then a conversion. Included
// by weight_format.h.
#pragma once

namespace warpline::cuda {

// A row's scale and addend in one group. Codes come as the bits of tiny halves: code * 2^-24 at bit
// 0, 16 times that at bit 4.
struct Affine {
  float scale24;  // scale * 2^24
  float scale20;
  float addend;
};

// NibblePair's (and FifthBits') fields as values.
WL_INLINE uint32_t AffinePair(uint32_t fields, int pair, const Affine& affine) {
  const float scale = pair % 2 == 0 ? affine.scale24 : affine.scale20;
  return PackFloats(FmaFloat(LowFloat(fields), scale, affine.addend),
                    FmaFloat(HighFloat(fields), scale, affine.addend));
}

// Q4_1 and Q5_1. Piece: 16 bytes a lane of nibbles (Q4_1: four words of row g, then 16 bytes more
// for row g + 8; Q5_1, with two groups: two words of each row), Q5_1: 4 bytes a lane of fifth bits
// (row g + 8 at bit 8 of each half), then for each g and group a word of d and m of row g and one
// of row g + 8.
template <QuantType kType, bool kFifth>
struct AffineFormat {
  static constexpr int kGroups = kFifth ? 2 : 4;
  static constexpr int kScalesAt = 256 * kGroups + (kFifth ? 128 : 0);
  static constexpr PackedShape kShape = {
      .slice_bytes = kScalesAt + 64 * kGroups, .super_bytes = 0, .groups = kGroups};
  static constexpr int kTableBytes = 0;

  struct Slice {
    Words<4> codes[kGroups / 2];  // word kGroups * h + group
    uint32_t fifth;
    Words<4> scales[kGroups / 2];  // word 2 * group + h
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t*, int lane) {
    Slice slice;
    slice.fifth = kFifth ? LoadWords<1>(piece + 512 + 4 * lane).w[0] : 0;
    WL_UNROLL
    for (int i = 0; i < kGroups / 2; ++i) {
      slice.codes[i] = LoadWords<4>(piece + 512 * i + 16 * lane);
      slice.scales[i] = LoadWords<4>(piece + kScalesAt + lane / 4 * 16 * (kGroups / 2) + 16 * i);
    }
    return slice;
  }

  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t word = slice.codes[(kGroups * h + group) / 4].w[(kGroups * h + group) % 4];
      const uint32_t pair_of_halves = slice.scales[group / 2].w[group % 2 * 2 + h];
      const float d = LowFloat(pair_of_halves);
      const Affine affine = {MulFloat(d, 0x1p24f), MulFloat(d, 0x1p20f), HighFloat(pair_of_halves)};
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        uint32_t fields = NibblePair(word, pair, 0);
        if constexpr (kFifth) fields = FifthBits(slice.fifth, 2 * h + group, pair, fields);
        FragmentOf(step0, step1, h, pair) = AffinePair(fields, pair, affine);
      }
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t*) {
    uint32_t codes[2 * kGroups] = {};
    uint32_t fifth[1] = {};
    uint32_t scales[2 * kGroups] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < kGroups; ++j) {
        const int64_t k = (static_cast<int64_t>(kGroups) * slice + j) * kGroupK;
        const uint8_t* const block = FindBlock<Block>(raw, h, k);
        if (block == nullptr) continue;
        const Codes8 raw_codes = ReadCodes<kType>(block, lane % 4 * 8);
        codes[kGroups * h + j] = PackFields(raw_codes, 0, 4);
        fifth[0] |= PackFields(raw_codes, 4, 1) << (4 * (2 * h + j));
        scales[2 * j + h] = LoadU32(block);  // d, then m
      }
    }
    WL_UNROLL
    for (int i = 0; i < kGroups / 2; ++i) {
      StoreWords({codes[4 * i], codes[4 * i + 1], codes[4 * i + 2], codes[4 * i + 3]},
                 piece + 512 * i + 16 * lane);
    }
    if constexpr (kFifth) StoreWords(fifth, piece + 512 + 4 * lane);
    if (lane % 4 == 0) StoreWords(scales, piece + kScalesAt + lane * 4 * (kGroups / 2));
  }

 private:
  using Block = typename BlockOf<kType>::Type;
};

template <>
struct WeightFormat<QuantType::kQ4_1> : AffineFormat<QuantType::kQ4_1, false> {};
template <>
struct WeightFormat<QuantType::kQ5_1> : AffineFormat<QuantType::kQ5_1, true> {};

// What turns a block's scales and minima, as tiny halves (2^-24), into an Affine: d and dmin, here
// without the bits that cancel.
struct AffineSuper {
  float d48;  // d * 2^48
  float d44;
  float min24;  // -dmin * 2^24

  // From a word of two halves, d below dmin.
  WL_INLINE static AffineSuper From(uint32_t halves) {
    const float d = LowFloat(halves);
    return {MulFloat(d, 0x1p48f), MulFloat(d, 0x1p44f), MulFloat(HighFloat(halves), -0x1p24f)};
  }

  // `fields` holds the integers scale and minimum as the bits of its halves.
  WL_INLINE Affine With(uint32_t fields) const {
    const float scale = LowFloat(fields);
    return {MulFloat(scale, d48), MulFloat(scale, d44), MulFloat(HighFloat(fields), min24)};
  }
};

// Q4_K and Q5_K. Piece: 16 bytes a lane of nibbles of row g (a word for each group), the same of
// row g + 8, Q5_K: 8 bytes a lane of fifth bits (row g, row g + 8), 16 bytes for each g: byte 8 * h
// + 2 * group the scale, the next one the minimum. Super: for each g a word of d and dmin of row g
// and one of row g + 8.
template <QuantType kType, bool kFifth>
struct AffineSuperFormat {
  static constexpr int kScalesAt = kFifth ? 1280 : 1024;
  static constexpr PackedShape kShape = {
      .slice_bytes = kScalesAt + 128, .super_bytes = 64, .groups = 4};
  static constexpr int kTableBytes = 0;

  struct Slice {
    Words<4> codes[2];
    Words<2> fifth;
    Words<4> scales;
    Words<2> d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t* super, int lane) {
    return {{LoadWords<4>(piece + 16 * lane), LoadWords<4>(piece + 512 + 16 * lane)},
            kFifth ? LoadWords<2>(piece + 1024 + 8 * lane) : Words<2>{},
            LoadWords<4>(piece + kScalesAt + lane / 4 * 16),
            LoadWords<2>(super + lane / 4 * 8)};
  }

  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t integers =
          Permute(slice.scales.w[2 * h + group / 2], 0, group % 2 == 0 ? 0x4140 : 0x4342);
      const Affine affine = AffineSuper::From(slice.d.w[h]).With(integers);
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        uint32_t fields = NibblePair(slice.codes[h].w[group], pair, 0);
        if constexpr (kFifth) fields = FifthBits(slice.fifth.w[h], group, pair, fields);
        FragmentOf(step0, step1, h, pair) = AffinePair(fields, pair, affine);
      }
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t* super) {
    uint32_t codes[2][4] = {};
    uint32_t fifth[2] = {};
    uint32_t scales[4] = {};
    uint32_t d[2] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t k = (4LL * slice + j) * kGroupK;
        const uint8_t* const block = FindBlock<Block>(raw, h, k);
        if (block == nullptr) continue;
        const int first = static_cast<int>(k % 256);
        const Codes8 raw_codes = ReadCodes<kType>(block, first + lane % 4 * 8);
        codes[h][j] = PackFields(raw_codes, 0, 4);
        fifth[h] |= PackFields(raw_codes, 4, 1) << (4 * j);
        const ScaleAndMin both = LoadScaleAndMin(block + 4, first / 32);
        scales[2 * h + j / 2] |= static_cast<uint32_t>(both.scale | both.min << 8)
                                 << (16 * (j % 2));
        d[h] = LoadU32(block);
      }
      StoreWords(codes[h], piece + 512 * h + 16 * lane);
    }
    if constexpr (kFifth) StoreWords(fifth, piece + 1024 + 8 * lane);
    if (lane % 4 != 0) return;
    StoreWords(scales, piece + kScalesAt + 4 * lane);
    if (slice % 2 == 0) StoreWords(d, super + 2 * lane);
  }

 private:
  using Block = typename BlockOf<kType>::Type;
};

template <>
struct WeightFormat<QuantType::kQ4K> : AffineSuperFormat<QuantType::kQ4K, false> {};
template <>
struct WeightFormat<QuantType::kQ5K> : AffineSuperFormat<QuantType::kQ5K, true> {};

// Piece: 16 bytes a lane of 2-bit codes (two words of row g, two of row g + 8; group j at bit 8 *
// (j % 2) of word j / 2), 8 bytes for each pair of lanes that share scales: byte 4 * h + group,
// scale in the low nibble, minimum in the high one. Super: as Q4_K.
template <>
struct WeightFormat<QuantType::kQ2K> {
  static constexpr PackedShape kShape = {.slice_bytes = 640, .super_bytes = 64, .groups = 4};
  static constexpr int kTableBytes = 0;

  struct Slice {
    Words<4> codes;
    Words<2> scales;
    Words<2> d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t* super, int lane) {
    return {LoadWords<4>(piece + 16 * lane), LoadWords<2>(piece + 512 + lane / 2 * 8),
            LoadWords<2>(super + lane / 4 * 8)};
  }

  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      // The scale at bit 0 of the low half, the minimum at bit 4 of the high one.
      const uint32_t selector = 0x4040 + static_cast<uint32_t>(group) * 0x0101;
      const uint32_t integers = Permute(slice.scales.w[h], 0, selector) & 0x00F0000F;
      const float d = LowFloat(slice.d.w[h]);
      const float scale = LowFloat(integers);
      const float addend =
          MulFloat(HighFloat(integers), MulFloat(HighFloat(slice.d.w[h]), -0x1p20f));
      const uint32_t word = slice.codes.w[2 * h + group / 2] >> (8 * (group % 2));
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const uint32_t fields = word & Twice(3u << (2 * pair));
        const float factor = MulFloat(scale, MulFloat(d, pair == 0   ? 0x1p48f
                                                         : pair == 1 ? 0x1p46f
                                                         : pair == 2 ? 0x1p44f
                                                                     : 0x1p42f));
        FragmentOf(step0, step1, h, pair) = PackFloats(FmaFloat(LowFloat(fields), factor, addend),
                                                       FmaFloat(HighFloat(fields), factor, addend));
      }
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t* super) {
    uint32_t codes[4] = {};
    uint32_t scales[2] = {};
    uint32_t d[2] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t k = (4LL * slice + j) * kGroupK;
        const uint8_t* const block = FindBlock<BlockQ2K>(raw, h, k);
        if (block == nullptr) continue;
        const int first = static_cast<int>(k % 256) + lane % 4 * 8;
        const Codes8 raw_codes = ReadCodes<QuantType::kQ2K>(block, first);
        codes[2 * h + j / 2] |= PackFields(raw_codes, 0, 2) << (8 * (j % 2));
        scales[h] |= static_cast<uint32_t>(block[first / 16]) << (8 * j);
        d[h] = LoadU32(block + 80);
      }
    }
    StoreWords(codes, piece + 16 * lane);
    if (lane % 2 == 0) StoreWords(scales, piece + 512 + 4 * lane);
    if (lane % 4 == 0 && slice % 2 == 0) StoreWords(d, super + 2 * lane);
  }
};

}  // namespace warpline::cuda
