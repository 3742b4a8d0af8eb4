// Formats whose value is scale * code + minimum: Q4_1, Q5_1, Q2_K, Q4_K, Q5_K. Their decoders round
// the float first and then the half; so one float fused multiply-add, then a conversion. Included
// by weight_format.h.
#pragma once

namespace warpline::cuda {

// A row's scale and addend in one group. Codes come as the bits of tiny halves: code * 2^-24 at bit
// 0, code * 2^(bit - 24) at a higher one.
struct Affine {
  float low_scale;   // scale * 2^24
  float high_scale;  // scale * 2^20 for codes of four bits, 2^19 for those of five
  float addend;
};

// Fields at bit `bit`, nothing else set, as values.
WL_INLINE uint32_t AffinePair(uint32_t fields, int bit, const Affine& affine) {
  const float scale = bit == 0 ? affine.low_scale : affine.high_scale;
  return PackFloats(FmaFloat(LowFloat(fields), scale, affine.addend),
                    FmaFloat(HighFloat(fields), scale, affine.addend));
}

// Q4_1 and Q5_1. Piece: 16 bytes a lane of codes (CodeFields' four words; Q4_1: of row g, and 16
// more of row g + 8; Q5_1, with two groups: groups 2 * h + group of one set of words), Q5_1: 4
// bytes a lane of last words, then for each g and group a word of d and m of row g and one of row g
// + 8.
template <QuantType kType, bool kFifth>
struct AffineFormat {
  static constexpr int kGroups = kFifth ? 2 : 4;
  static constexpr int kSets = kFifth ? 1 : 2;  // of code words
  static constexpr int kScalesAt = kFifth ? 640 : 1024;
  static constexpr PackedShape kShape = {
      .slice_bytes = kScalesAt + 64 * kGroups, .super_bytes = 0, .groups = kGroups};
  static constexpr int kTableBytes = 0;

  struct Slice {
    CodeWords codes[kSets];
    Words<4> scales[kGroups / 2];  // word 2 * group + h
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t*, int lane) {
    Slice slice;
    WL_UNROLL
    for (int i = 0; i < kSets; ++i) {
      slice.codes[i].w = LoadWords<4>(piece + 512 * i + 16 * lane);
      slice.codes[i].last = kFifth ? LoadWords<1>(piece + 512 + 4 * lane).w[0] : 0;
    }
    WL_UNROLL
    for (int i = 0; i < kGroups / 2; ++i) {
      slice.scales[i] = LoadWords<4>(piece + kScalesAt + lane / 4 * 16 * (kGroups / 2) + 16 * i);
    }
    return slice;
  }

  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t d_and_m = slice.scales[group / 2].w[group % 2 * 2 + h];
      const float d = LowFloat(d_and_m);
      const Affine affine = {MulFloat(d, 0x1p24f), MulFloat(d, kFifth ? 0x1p19f : 0x1p20f),
                             HighFloat(d_and_m)};
      const int packed_group = kFifth ? 2 * h + group : group;
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const uint32_t fields = Fields::Pair(slice.codes[kFifth ? 0 : h], packed_group, pair, 0);
        FragmentOf(step0, step1, h, pair) =
            AffinePair(fields, Fields::Bit(packed_group, pair), affine);
      }
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t*) {
    CodeWords codes[kSets] = {};
    uint32_t scales[2 * kGroups] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < kGroups; ++j) {
        const int64_t k = (static_cast<int64_t>(kGroups) * slice + j) * kGroupK;
        const uint8_t* const block = FindBlock<Block>(raw, h, k);
        if (block == nullptr) continue;
        Fields::Pack(ReadCodes<kType>(block, lane % 4 * 8), kFifth ? 2 * h + j : j,
                     codes[kFifth ? 0 : h]);
        scales[2 * j + h] = LoadU32(block);  // d, then m
      }
    }
    WL_UNROLL
    for (int i = 0; i < kSets; ++i) StoreWords(codes[i].w.w, piece + 512 * i + 16 * lane);
    if constexpr (kFifth) StoreWords({codes[0].last}, piece + 512 + 4 * lane);
    if (lane % 4 == 0) StoreWords(scales, piece + kScalesAt + lane * 4 * (kGroups / 2));
  }

 private:
  using Block = typename BlockOf<kType>::Type;
  using Fields = CodeFields<kFifth>;
};

template <>
struct WeightFormat<QuantType::kQ4_1> : AffineFormat<QuantType::kQ4_1, false> {};
template <>
struct WeightFormat<QuantType::kQ5_1> : AffineFormat<QuantType::kQ5_1, true> {};

// What turns a block's scales and minima, as tiny halves (2^-24), into an Affine.
template <bool kFifth>
struct AffineSuper {
  float low_d;      // d * 2^48
  float high_d;     // d * 2^44, or 2^43 for codes of five bits
  float minus_min;  // -dmin * 2^24

  // From a word of two halves, d below dmin.
  WL_INLINE static AffineSuper From(uint32_t halves) {
    const float d = LowFloat(halves);
    return {MulFloat(d, 0x1p48f), MulFloat(d, kFifth ? 0x1p43f : 0x1p44f),
            MulFloat(HighFloat(halves), -0x1p24f)};
  }

  // `fields` holds the integers scale and minimum as the bits of its halves.
  WL_INLINE Affine With(uint32_t fields) const {
    const float scale = LowFloat(fields);
    return {MulFloat(scale, low_d), MulFloat(scale, high_d),
            MulFloat(HighFloat(fields), minus_min)};
  }
};

// Q4_K and Q5_K. Piece: 16 bytes a lane of codes of row g (CodeFields' four words), the same of row
// g
// + 8, Q5_K: 8 bytes a lane of last words (row g, row g + 8), 16 bytes for each g: byte 8 * h + 2 *
// group the scale, the next one the minimum. Super: for each g a word of d and dmin of row g and
// one of row g + 8.
template <QuantType kType, bool kFifth>
struct AffineSuperFormat {
  static constexpr int kScalesAt = kFifth ? 1280 : 1024;
  static constexpr PackedShape kShape = {
      .slice_bytes = kScalesAt + 128, .super_bytes = 64, .groups = 4};
  static constexpr int kTableBytes = 0;

  struct Slice {
    CodeWords codes[2];
    Words<4> scales;
    Words<2> d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t* super, int lane) {
    const Words<2> last = kFifth ? LoadWords<2>(piece + 1024 + 8 * lane) : Words<2>{};
    return {{{LoadWords<4>(piece + 16 * lane), last.w[0]},
             {LoadWords<4>(piece + 512 + 16 * lane), last.w[1]}},
            LoadWords<4>(piece + kScalesAt + lane / 4 * 16),
            LoadWords<2>(super + lane / 4 * 8)};
  }

  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t integers =
          Permute(slice.scales.w[2 * h + group / 2], 0, group % 2 == 0 ? 0x4140 : 0x4342);
      const Affine affine = AffineSuper<kFifth>::From(slice.d.w[h]).With(integers);
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const uint32_t fields = Fields::Pair(slice.codes[h], group, pair, 0);
        FragmentOf(step0, step1, h, pair) = AffinePair(fields, Fields::Bit(group, pair), affine);
      }
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t* super) {
    CodeWords codes[2] = {};
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
        Fields::Pack(ReadCodes<kType>(block, first + lane % 4 * 8), j, codes[h]);
        const ScaleAndMin both = LoadScaleAndMin(block + 4, first / 32);
        scales[2 * h + j / 2] |= static_cast<uint32_t>(both.scale | both.min << 8)
                                 << (16 * (j % 2));
        d[h] = LoadU32(block);
      }
      StoreWords(codes[h].w.w, piece + 512 * h + 16 * lane);
    }
    if constexpr (kFifth) StoreWords({codes[0].last, codes[1].last}, piece + 1024 + 8 * lane);
    if (lane % 4 != 0) return;
    StoreWords(scales, piece + kScalesAt + 4 * lane);
    if (slice % 2 == 0) StoreWords(d, super + 2 * lane);
  }

 private:
  using Block = typename BlockOf<kType>::Type;
  using Fields = CodeFields<kFifth>;
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
      // Pairs 2 and 3 are moved to where 0 and 1 are.
      const float scales[2] = {MulFloat(scale, MulFloat(d, 0x1p48f)),
                               MulFloat(scale, MulFloat(d, 0x1p46f))};
      const float addend =
          MulFloat(HighFloat(integers), MulFloat(HighFloat(slice.d.w[h]), -0x1p20f));
      const uint32_t word = slice.codes.w[2 * h + group / 2];
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const uint32_t fields =
            (word >> (8 * (group % 2) + pair / 2 * 4)) & Twice(3u << (pair % 2 * 2));
        FragmentOf(step0, step1, h, pair) =
            PackFloats(FmaFloat(LowFloat(fields), scales[pair % 2], addend),
                       FmaFloat(HighFloat(fields), scales[pair % 2], addend));
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
