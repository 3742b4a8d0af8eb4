// Integer codes times one half scale for each 32 (Q4_0, Q5_0, Q8_0), and times a signed byte and a
// half (Q6_K). Included by weight_format.h.
#pragma once

namespace warpline::cuda {

// Q4_0 and Q5_0. Piece: 16 bytes a lane of codes of row g (CodeFields' four words), the same of row
// g
// + 8, Q5_0: 8 bytes a lane of last words (row g, row g + 8), 16 bytes of d for each g (a word for
// each group: rows g and g + 8).
template <QuantType kType, bool kFifth>
struct NibbleFormat {
  static constexpr int kScalesAt = kFifth ? 1280 : 1024;
  static constexpr PackedShape kShape = {
      .slice_bytes = kScalesAt + 128, .super_bytes = 0, .groups = 4};
  static constexpr int kTableBytes = 0;

  struct Slice {
    CodeWords codes[2];
    Words<4> d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t*, int lane) {
    const Words<2> last = kFifth ? LoadWords<2>(piece + 1024 + 8 * lane) : Words<2>{};
    return {{{LoadWords<4>(piece + 16 * lane), last.w[0]},
             {LoadWords<4>(piece + 512 + 16 * lane), last.w[1]}},
            LoadWords<4>(piece + kScalesAt + lane / 4 * 16)};
  }

  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t d = BroadcastRow(slice.d.w[group], h);
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const uint32_t fields = Fields::Pair(slice.codes[h], group, pair, kBias1024);
        const uint32_t code = Unbiased < kFifth ? 16 : 8 > (fields, Fields::Bit(group, pair));
        FragmentOf(step0, step1, h, pair) = Mul2(code, d);
      }
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t*) {
    CodeWords codes[2] = {};
    uint32_t d[4] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const uint8_t* const block = FindBlock<Block>(raw, h, (4LL * slice + j) * kGroupK);
        if (block == nullptr) continue;
        Fields::Pack(ReadCodes<kType>(block, lane % 4 * 8), j, codes[h]);
        d[j] |= LoadU16(block) << (16 * h);
      }
      StoreWords(codes[h].w.w, piece + 512 * h + 16 * lane);
    }
    if constexpr (kFifth) StoreWords({codes[0].last, codes[1].last}, piece + 1024 + 8 * lane);
    if (lane % 4 == 0) StoreWords(d, piece + kScalesAt + 4 * lane);
  }

 private:
  using Block = typename BlockOf<kType>::Type;
  using Fields = CodeFields<kFifth>;
};

template <>
struct WeightFormat<QuantType::kQ4_0> : NibbleFormat<QuantType::kQ4_0, false> {};
template <>
struct WeightFormat<QuantType::kQ5_0> : NibbleFormat<QuantType::kQ5_0, true> {};

// Piece: 16 bytes a lane for each of two groups (two words of row g, two of row g + 8: bytes 128 +
// code), 8 bytes of d for each g (a word for each group: rows g and g + 8).
template <>
struct WeightFormat<QuantType::kQ8_0> {
  static constexpr PackedShape kShape = {.slice_bytes = 1088, .super_bytes = 0, .groups = 2};
  static constexpr int kTableBytes = 0;

  struct Slice {
    Words<4> codes[2];
    Words<2> d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t*, int lane) {
    return {{LoadWords<4>(piece + 16 * lane), LoadWords<4>(piece + 512 + 16 * lane)},
            LoadWords<2>(piece + 1024 + lane / 4 * 8)};
  }

  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t d = BroadcastRow(slice.d.w[group], h);
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const uint32_t bytes = slice.codes[group].w[2 * h + pair / 2];
        const uint32_t biased = Permute(bytes, Twice(0x6464), pair % 2 == 0 ? 0x4140 : 0x4342);
        FragmentOf(step0, step1, h, pair) = Mul2(Add2(biased, Twice(HalfOfInteger(-1152))), d);
      }
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t*) {
    uint32_t d[2] = {};
    WL_UNROLL
    for (int j = 0; j < 2; ++j) {
      uint32_t codes[4] = {};
      WL_UNROLL
      for (int h = 0; h < 2; ++h) {
        const uint8_t* const block = FindBlock<BlockQ8_0>(raw, h, (2LL * slice + j) * kGroupK);
        if (block == nullptr) continue;
        const Codes8 raw_codes = ReadCodes<QuantType::kQ8_0>(block, lane % 4 * 8);
        WL_UNROLL
        for (int i = 0; i < 8; ++i) codes[2 * h + i / 4] |= raw_codes.v[i] << (8 * (i % 4));
        d[j] |= LoadU16(block) << (16 * h);
      }
      StoreWords(codes, piece + 512 * j + 16 * lane);
    }
    if (lane % 4 == 0) StoreWords(d, piece + 1024 + 2 * lane);
  }
};

// Piece: nibbles as Q4_0, 16 bytes a lane of upper pairs of bits (two words of row g, two of row g
// + 8; group j at bit 8 * (j % 2) of word j / 2), 8 bytes for each pair of lanes that share scales:
// byte 2 * group + h, the scale plus 128. Super: the half d of rows g and g + 8 for each g.
template <>
struct WeightFormat<QuantType::kQ6K> {
  static constexpr PackedShape kShape = {.slice_bytes = 1664, .super_bytes = 32, .groups = 4};
  static constexpr int kTableBytes = 0;

  struct Slice {
    CodeWords codes[2];
    Words<4> upper;
    Words<2> scales;
    uint32_t d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t* super, int lane) {
    return {{{LoadWords<4>(piece + 16 * lane), 0}, {LoadWords<4>(piece + 512 + 16 * lane), 0}},
            LoadWords<4>(piece + 1024 + 16 * lane),
            LoadWords<2>(piece + 1536 + lane / 2 * 8),
            LoadWords<1>(super + lane / 4 * 4).w[0]};
  }

  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t scale = ByteScale(slice.scales.w[group / 2], group % 2 * 2 + h);
      const uint32_t d = BroadcastRow(slice.d, h);
      const uint32_t upper = slice.upper.w[2 * h + group / 2];
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const int bit = Fields::Bit(group, pair);
        const uint32_t nibbles = Fields::Pair(slice.codes[h], group, pair, kBias1024);
        const uint32_t fields =
            AndOr(Shift(upper, group % 2 * 8 + 2 * pair - bit - 4), Twice(0x30u << bit), nibbles);
        FragmentOf(step0, step1, h, pair) = ProductOfThree(Unbiased<32>(fields, bit), scale, d);
      }
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t* super) {
    CodeWords codes[2] = {};
    uint32_t upper[4] = {};
    uint32_t scales[2] = {};
    uint32_t d[1] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t k = (4LL * slice + j) * kGroupK;
        const uint8_t* const block = FindBlock<BlockQ6K>(raw, h, k);
        if (block == nullptr) continue;
        const int first = static_cast<int>(k % 256) + lane % 4 * 8;
        const Codes8 raw_codes = ReadCodes<QuantType::kQ6K>(block, first);
        Fields::Pack(raw_codes, j, codes[h]);
        upper[2 * h + j / 2] |= PackFields(raw_codes, 4, 2) << (8 * (j % 2));
        scales[j / 2] |= (block[192 + first / 16] ^ 128u) << (16 * (j % 2) + 8 * h);
        d[0] |= j == 0 ? LoadU16(block + 208) << (16 * h) : 0;
      }
      StoreWords(codes[h].w.w, piece + 512 * h + 16 * lane);
    }
    StoreWords(upper, piece + 1024 + 16 * lane);
    if (lane % 2 == 0) StoreWords(scales, piece + 1536 + 4 * lane);
    if (lane % 4 == 0 && slice % 2 == 0) StoreWords(d, super + lane);
  }

 private:
  using Fields = CodeFields<false>;
};

}  // namespace warpline::cuda
