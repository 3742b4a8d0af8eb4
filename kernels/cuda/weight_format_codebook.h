// Nibble codes that pick one of sixteen numbers by byte permutation: IQ4_NL, IQ4_XS, MXFP4, NVFP4.
// Included by weight_format.h.
#pragma once

namespace warpline::cuda {

// Eight codes as PackSelectors lays them: the bytes of values 0 to 3 and of values 4 to 7.
struct EightBytes {
  uint32_t low;
  uint32_t high;
};

// IQ4's levels plus 128, four to a word: 1 24 45 63, 79 93 106 118 and 129 141 153 166, 181 197 217
// 241.
WL_INLINE EightBytes LookUpIQ4(uint32_t word) {
  const uint32_t selectors = word & 0x77777777;
  const uint32_t masks[2] = {Permute(word, word, 0xBA98), Permute(word << 4, word << 4, 0xBA98)};
  uint32_t bytes[2];
  WL_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint32_t selector = i == 0 ? selectors : selectors >> 16;
    const uint32_t negative = Permute(0x3F2D1801, 0x766A5D4F, selector);
    const uint32_t positive = Permute(0xA6998D81, 0xF1D9C5B5, selector);
    bytes[i] = (negative & ~masks[i]) | (positive & masks[i]);
  }
  return {bytes[0], bytes[1]};
}

// IQ4's level of pair `pair` (0 to 3) as halves, from LookUpIQ4.
WL_INLINE uint32_t IQ4Pair(const EightBytes& bytes, int pair) {
  const uint32_t biased =
      Permute(pair < 2 ? bytes.low : bytes.high, Twice(0x6464), pair % 2 == 0 ? 0x4140 : 0x4342);
  return Add2(biased, Twice(0xE480));  // 1024 + 128 + level - 1152
}

// The high bytes of the halves that E2M1 codes mean; `low` and `high` hold those of the magnitudes
// 0 to 3 and 4 to 7. The low bytes of such halves are 0.
WL_INLINE EightBytes LookUpE2M1(uint32_t word, uint32_t low, uint32_t high) {
  const uint32_t selectors = word & 0x77777777;
  return {Permute(low, high, selectors) | (word & 0x80808080),
          Permute(low, high, selectors >> 16) | ((word << 4) & 0x80808080)};
}

WL_INLINE uint32_t E2M1Pair(const EightBytes& bytes, int pair) {
  return Permute(pair < 2 ? bytes.low : bytes.high, 0, pair % 2 == 0 ? 0x1404 : 0x3424);
}

// Blocks of 32 with one half as scale. Piece: 16 bytes a lane of codes of row g (a word for each
// group), the same of row g + 8, 16 bytes of scales for each g (a word for each group: rows g and g
// + 8).
template <QuantType kType>
struct CodebookFormat {
  static constexpr PackedShape kShape = {.slice_bytes = 1152, .super_bytes = 0, .groups = 4};
  static constexpr int kTableBytes = 0;

  struct Slice {
    Words<4> codes[2];
    Words<4> scales;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t*, int lane) {
    return {{LoadWords<4>(piece + 16 * lane), LoadWords<4>(piece + 512 + 16 * lane)},
            LoadWords<4>(piece + 1024 + lane / 4 * 16)};
  }

  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t scale = BroadcastRow(slice.scales.w[group], h);
      const EightBytes bytes = LookUp(slice.codes[h].w[group]);
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        FragmentOf(step0, step1, h, pair) = Mul2(Pair(bytes, pair), scale);
      }
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t*) {
    uint32_t codes[2][4] = {};
    uint32_t scales[4] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const uint8_t* const block = FindBlock<Block>(raw, h, (4LL * slice + j) * kGroupK);
        if (block == nullptr) continue;
        codes[h][j] = PackSelectors(ReadCodes<kType>(block, lane % 4 * 8));
        scales[j] |= Scale(block, raw.shift) << (16 * h);
      }
      StoreWords(codes[h], piece + 512 * h + 16 * lane);
    }
    if (lane % 4 == 0) StoreWords(scales, piece + 1024 + 4 * lane);
  }

 private:
  using Block = typename BlockOf<kType>::Type;

  WL_INLINE static EightBytes LookUp(uint32_t word) {
    // MXFP4: sixteenths of the doubled codes 0, 1, 2, 3, 4, 6, 8, 12.
    if constexpr (kType == QuantType::kMXFP4) return LookUpE2M1(word, 0x32302C00, 0x3A383634);
    return LookUpIQ4(word);
  }

  WL_INLINE static uint32_t Pair(const EightBytes& bytes, int pair) {
    if constexpr (kType == QuantType::kMXFP4) return E2M1Pair(bytes, pair);
    return IQ4Pair(bytes, pair);
  }

  // IQ4_NL: d. MXFP4: sixteen times the power of two 2^(e - 128 + shift), so that the smallest
  // scale that does not round all codes to 0 is a half; one that is too large has codes 0 alone.
  WL_HOST_DEVICE static uint32_t Scale(const uint8_t* block, int shift) {
    if constexpr (kType == QuantType::kMXFP4) {
      const int exponent = block[0] - 128 + shift + 4;
      if (exponent < -24) return 0;
      if (exponent < -14) return 1u << (exponent + 24);
      return static_cast<uint32_t>((exponent < 15 ? exponent : 15) + 15) << 10;
    }
    return LoadU16(block);
  }
};

template <>
struct WeightFormat<QuantType::kIQ4NL> : CodebookFormat<QuantType::kIQ4NL> {};
template <>
struct WeightFormat<QuantType::kMXFP4> : CodebookFormat<QuantType::kMXFP4> {};

// Blocks of 16 with an E4M3 scale. Piece: codes as above, then 8 bytes for each pair of lanes that
// share scales: byte 2 * group + h, twice the scale's seven bits.
template <>
struct WeightFormat<QuantType::kNVFP4> {
  static constexpr PackedShape kShape = {.slice_bytes = 1152, .super_bytes = 0, .groups = 4};
  static constexpr int kTableBytes = 0;

  struct Slice {
    Words<4> codes[2];
    Words<2> scales;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t*, int lane) {
    return {{LoadWords<4>(piece + 16 * lane), LoadWords<4>(piece + 512 + 16 * lane)},
            LoadWords<2>(piece + 1024 + lane / 2 * 8)};
  }

  // The seven bits, moved to a half's exponent and fraction, are the E4M3 number times 2^-8; the
  // value is code * number / 2, so the codes are taken 128 times: 0, 128, ... 1536.
  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t byte = static_cast<uint32_t>(group % 2 * 2 + h);
      const uint32_t scale = Permute(slice.scales.w[group / 2], 0, 0x0404 + byte * 0x1010) >> 1;
      const EightBytes bytes = LookUpE2M1(slice.codes[h].w[group], 0x5E5C5800, 0x66646260);
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        FragmentOf(step0, step1, h, pair) = Mul2(E2M1Pair(bytes, pair), scale);
      }
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t*) {
    const int t = lane % 4;
    uint32_t codes[2][4] = {};
    uint32_t scales[2] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t k = (4LL * slice + j) * kGroupK;
        const uint8_t* const block = FindBlock<BlockNVFP4>(raw, h, k);
        if (block == nullptr) continue;
        const int first = static_cast<int>(k % 64) + 8 * t;
        codes[h][j] = PackSelectors(ReadCodes<QuantType::kNVFP4>(block, first));
        const uint32_t byte = block[first / 16];
        const uint32_t scale = byte == 0x7F ? 0 : byte & 0x7F;
        scales[j / 2] |= scale << (16 * (j % 2) + 8 * h);
      }
      StoreWords(codes[h], piece + 512 * h + 16 * lane);
    }
    if (t % 2 == 0) StoreWords(scales, piece + 1024 + 4 * lane);
  }
};

// Blocks of 256 with a signed scale for each 32. Piece: codes as above, then 8 bytes for each g:
// byte 2 * group + h, the scale plus 128. Super: the half d of rows g and g + 8 for each g.
template <>
struct WeightFormat<QuantType::kIQ4XS> {
  static constexpr PackedShape kShape = {.slice_bytes = 1088, .super_bytes = 32, .groups = 4};
  static constexpr int kTableBytes = 0;

  struct Slice {
    Words<4> codes[2];
    Words<2> scales;
    uint32_t d;
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t* super, int lane) {
    return {{LoadWords<4>(piece + 16 * lane), LoadWords<4>(piece + 512 + 16 * lane)},
            LoadWords<2>(piece + 1024 + lane / 4 * 8),
            LoadWords<1>(super + lane / 4 * 4).w[0]};
  }

  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t scale = ByteScale(slice.scales.w[group / 2], group % 2 * 2 + h);
      const uint32_t d = BroadcastRow(slice.d, h);
      const EightBytes bytes = LookUpIQ4(slice.codes[h].w[group]);
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        FragmentOf(step0, step1, h, pair) = ProductOfThree(IQ4Pair(bytes, pair), scale, d);
      }
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t* super) {
    uint32_t codes[2][4] = {};
    uint32_t scales[2] = {};
    uint32_t d[1] = {};
    WL_UNROLL
    for (int h = 0; h < 2; ++h) {
      WL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t k = (4LL * slice + j) * kGroupK;
        const uint8_t* const block = FindBlock<BlockIQ4XS>(raw, h, k);
        if (block == nullptr) continue;
        const int first = static_cast<int>(k % 256);
        codes[h][j] = PackSelectors(ReadCodes<QuantType::kIQ4XS>(block, first + lane % 4 * 8));
        const int scale = LoadIQ4XSScale(block, first / 32);
        scales[j / 2] |= static_cast<uint32_t>(scale + 128) << (16 * (j % 2) + 8 * h);
        d[0] |= j == 0 ? LoadU16(block) << (16 * h) : 0;
      }
      StoreWords(codes[h], piece + 512 * h + 16 * lane);
    }
    if (lane % 4 != 0) return;
    StoreWords(scales, piece + 1024 + 2 * lane);
    if (slice % 2 == 0) StoreWords(d, super + lane);
  }
};

}  // namespace warpline::cuda
