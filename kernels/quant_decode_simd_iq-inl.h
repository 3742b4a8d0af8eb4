// Vector decoders of the IQ formats. Per-target header, see quant_decode_simd-inl.h.
#if defined(WARPLINE_KERNELS_QUANT_DECODE_SIMD_IQ_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLINE_KERNELS_QUANT_DECODE_SIMD_IQ_INL_H_
#undef WARPLINE_KERNELS_QUANT_DECODE_SIMD_IQ_INL_H_
#else
#define WARPLINE_KERNELS_QUANT_DECODE_SIMD_IQ_INL_H_
#endif

#include "kernels/quant_decode_iq.h"
#include "kernels/quant_decode_simd-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace warpline {
namespace HWY_NAMESPACE {
namespace decode {

// Two grid entries of eight values; bit i of `signs` negates value i.
HWY_INLINE Bytes16 SignedEntries(uint64_t first, uint64_t second, uint32_t signs) {
  const Bytes16 v = BytesFromWords(first, second);
  return hn::IfThenElse(MaskOf16(signs), hn::Neg(v), v);
}

// Two grid entries of four values as one of eight.
HWY_INLINE uint64_t Join(uint32_t first, uint32_t second) {
  return first | static_cast<uint64_t>(second) << 32;
}

// Four 7-bit indices of sign masks, from the low end, to four mask bytes: bit 7 of each makes its
// count of bits even.
HWY_INLINE uint32_t SignMasksFrom28(uint32_t packed) {
  const uint32_t indices = (packed & 0x7F) | (packed & 0x3F80) << 1 | (packed & 0x1FC000) << 2 |
                           (packed & 0xFE00000) << 3;
  uint32_t parity = indices ^ (indices >> 4 & 0x0F0F0F0F);
  parity ^= parity >> 2 & 0x3F3F3F3F;
  parity ^= parity >> 1;
  return indices | (parity & 0x01010101) << 7;
}

// IQ2_XS and IQ2_S: sixteen 4-bit scales, d (0.5 + nibble) / 4 for sixteen values each.
HWY_INLINE GroupScales UnpackIQ2Scales(const uint8_t* packed, FloatVec d) {
  const Bytes16 bytes = BytesFromWords(LoadWord64(packed), 0);
  const Bytes16 nibbles = InterleaveBytes(Field<0, 15>(bytes), Field<4, 15>(bytes)).low;
  const Bytes16 odd = hn::Or(ShiftUp<1>(nibbles), SetBytes(1));
  return GroupScales(Scaled(odd, hn::Mul(d, hn::Set(FloatTag(), 0.125f))));
}

template <>
struct SimdBlock<QuantType::kIQ2XXS> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 66;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids& grids, Sink& sink) {
    const FloatTag df;
    const FloatVec d = hn::Mul(BroadcastHalf(block), hn::Set(df, 0.125f));
    for (int ib = 0; ib < 8; ++ib) {
      const uint8_t* const indices = block + 2 + 8 * ib;
      const uint32_t packed = LoadWord32(indices + 4);
      const uint32_t signs = SignMasksFrom28(packed);
      const FloatVec scale =
          hn::Mul(d, hn::Set(df, static_cast<float>(static_cast<int>(packed >> 28) * 2 + 1)));
      const uint64_t* const grid = grids.iq2_xxs;
      sink.Take(2 * ib,
                Scaled(SignedEntries(grid[indices[0]], grid[indices[1]], signs & 0xFFFF), scale));
      sink.Take(2 * ib + 1,
                Scaled(SignedEntries(grid[indices[2]], grid[indices[3]], signs >> 16), scale));
    }
  }
};

template <>
struct SimdBlock<QuantType::kIQ2XS> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 74;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids& grids, Sink& sink) {
    const GroupScales scales = UnpackIQ2Scales(block + 66, BroadcastHalf(block));
    for (int i = 0; i < 16; ++i) {
      const uint32_t words = LoadWord32(block + 2 + 4 * i);
      const uint32_t first = words & 0xFFFF, second = words >> 16;
      const uint32_t signs = SignMaskFrom7(first >> 9) | SignMaskFrom7(second >> 9) << 8;
      sink.Take(i,
                Scaled(SignedEntries(grids.iq2_xs[first & 511], grids.iq2_xs[second & 511], signs),
                       scales[i]));
    }
  }
};

template <>
struct SimdBlock<QuantType::kIQ2S> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 82;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids& grids, Sink& sink) {
    const GroupScales scales = UnpackIQ2Scales(block + 74, BroadcastHalf(block));
    const uint8_t* const qs = block + 2;
    const uint8_t* const signs = block + 34;
    for (int i = 0; i < 16; ++i) {
      const uint32_t qh = static_cast<uint32_t>(block[66 + i / 2]) >> (4 * (i % 2));
      const uint32_t first = qs[2 * i] | (qh & 3) << 8;
      const uint32_t second = qs[2 * i + 1] | (qh >> 2 & 3) << 8;
      sink.Take(i, Scaled(SignedEntries(grids.iq2_s[first], grids.iq2_s[second],
                                        LoadWord16(signs + 2 * i)),
                          scales[i]));
    }
  }
};

template <>
struct SimdBlock<QuantType::kIQ3XXS> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 98;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids& grids, Sink& sink) {
    const FloatTag df;
    const FloatVec d = hn::Mul(BroadcastHalf(block), hn::Set(df, 0.25f));
    const uint32_t* const grid = grids.iq3_xxs;
    for (int ib = 0; ib < 8; ++ib) {
      const uint8_t* const qs = block + 2 + 8 * ib;
      const uint32_t packed = LoadWord32(block + 66 + 4 * ib);
      const uint32_t signs = SignMasksFrom28(packed);
      const FloatVec scale =
          hn::Mul(d, hn::Set(df, static_cast<float>(static_cast<int>(packed >> 28) * 2 + 1)));
      sink.Take(2 * ib, Scaled(SignedEntries(Join(grid[qs[0]], grid[qs[1]]),
                                             Join(grid[qs[2]], grid[qs[3]]), signs & 0xFFFF),
                               scale));
      sink.Take(2 * ib + 1, Scaled(SignedEntries(Join(grid[qs[4]], grid[qs[5]]),
                                                 Join(grid[qs[6]], grid[qs[7]]), signs >> 16),
                                   scale));
    }
  }
};

template <>
struct SimdBlock<QuantType::kIQ3S> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 110;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids& grids, Sink& sink) {
    const FloatTag df;
    const FloatVec d = BroadcastHalf(block);
    for (int ib = 0; ib < 8; ++ib) {
      const uint32_t nibble = static_cast<uint32_t>(block[106 + ib / 2]) >> (4 * (ib % 2)) & 15;
      const FloatVec scale =
          hn::Mul(d, hn::Set(df, static_cast<float>(static_cast<int>(2 * nibble + 1))));
      const uint8_t* const qs = block + 2 + 8 * ib;
      const uint32_t qh = block[66 + ib];
      const uint8_t* const signs = block + 74 + 4 * ib;
      sink.Take(2 * ib, Scaled(Entries(grids.iq3_s, qs, qh, LoadWord16(signs)), scale));
      sink.Take(2 * ib + 1,
                Scaled(Entries(grids.iq3_s, qs + 4, qh >> 4, LoadWord16(signs + 2)), scale));
    }
  }

 private:
  // Four entries; the ninth bits of their indices are the low bits of qh.
  static HWY_INLINE Bytes16 Entries(const uint32_t* grid, const uint8_t* qs, uint32_t qh,
                                    uint32_t signs) {
    const uint32_t e0 = grid[qs[0] | (qh << 8 & 256)], e1 = grid[qs[1] | (qh << 7 & 256)];
    const uint32_t e2 = grid[qs[2] | (qh << 6 & 256)], e3 = grid[qs[3] | (qh << 5 & 256)];
    return SignedEntries(Join(e0, e1), Join(e2, e3), signs);
  }
};

// Eight times the values of two IQ1 entries: 8 (-1, 0 or 1) plus `shifts`, which are 1 or -1.
HWY_INLINE Bytes16 ShiftedEntries(uint64_t first, uint64_t second, Bytes16 shifts) {
  const Bytes16 v = BytesFromWords(first, second);
  const Bytes16 v2 = hn::Add(v, v), v4 = hn::Add(v2, v2);
  return hn::Add(hn::Add(v4, v4), shifts);
}

template <>
struct SimdBlock<QuantType::kIQ1S> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 50;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids& grids, Sink& sink) {
    const FloatTag df;
    const FloatVec d = hn::Mul(BroadcastHalf(block), hn::Set(df, 0.125f));
    const uint64_t* const grid = grids.iq1;
    for (int ib = 0; ib < 8; ++ib) {
      const uint8_t* const qs = block + 2 + 4 * ib;
      const uint32_t qh = LoadWord16(block + 34 + 2 * ib);
      const FloatVec scale =
          hn::Mul(d, hn::Set(df, static_cast<float>(static_cast<int>((qh >> 12 & 7) * 2 + 1))));
      const Bytes16 shifts = SetBytes(1 - 2 * static_cast<int>(qh >> 15));
      const uint64_t e0 = grid[qs[0] | (qh & 7) << 8], e1 = grid[qs[1] | (qh >> 3 & 7) << 8];
      const uint64_t e2 = grid[qs[2] | (qh >> 6 & 7) << 8], e3 = grid[qs[3] | (qh >> 9 & 7) << 8];
      sink.Take(2 * ib, Scaled(ShiftedEntries(e0, e1, shifts), scale));
      sink.Take(2 * ib + 1, Scaled(ShiftedEntries(e2, e3, shifts), scale));
    }
  }
};

template <>
struct SimdBlock<QuantType::kIQ1M> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 56;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids& grids, Sink& sink) {
    const FloatTag df;
    const uint64_t words = LoadWord64(block + 48);
    const uint32_t d_bits = static_cast<uint32_t>((words >> 12 & 0xF) | (words >> 24 & 0xF0) |
                                                  (words >> 36 & 0xF00) | (words >> 48 & 0xF000));
    const FloatVec d = hn::Mul(BroadcastHalfBits(d_bits), hn::Set(df, 0.125f));
    for (int i = 0; i < 16; ++i) {  // two entries with one scale and a shift each
      const uint32_t step = static_cast<uint32_t>(words >> (16 * (i / 4) + 3 * (i % 4))) & 7;
      const FloatVec scale =
          hn::Mul(d, hn::Set(df, static_cast<float>(static_cast<int>(2 * step + 1))));
      const uint32_t qh = block[32 + i];
      const uint64_t first = grids.iq1[block[2 * i] | (qh & 7) << 8];
      const uint64_t second = grids.iq1[block[2 * i + 1] | (qh >> 4 & 7) << 8];
      // Bit 3 of a nibble says -1.
      const Bytes16 shifts = BytesFromWords(kShift[qh >> 3 & 1], kShift[qh >> 7]);
      sink.Take(i, Scaled(ShiftedEntries(first, second, shifts), scale));
    }
  }

 private:
  static constexpr uint64_t kShift[2] = {0x0101010101010101, 0xFFFFFFFFFFFFFFFF};
};

template <>
struct SimdBlock<QuantType::kIQ4NL> {
  static constexpr int kValues = 32;
  static constexpr int kBytes = 18;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids& grids, Sink& sink) {
    const LevelNibbles values(LoadBytes(grids.iq4_codes), BroadcastHalf(block));
    const Bytes16 qs = LoadBytes(block + 2);
    sink.Take(0, values.Low(qs));
    sink.Take(1, values.High(qs));
  }
};

template <>
struct SimdBlock<QuantType::kIQ4XS> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 136;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids& grids, Sink& sink) {
    const FloatVec d = BroadcastHalf(block);
    const Bytes16 codes = LoadBytes(grids.iq4_codes);
    for (int ib = 0; ib < 8; ++ib) {
      const FloatVec scale =
          hn::Mul(d, hn::Set(FloatTag(), static_cast<float>(LoadIQ4XSScale(block, ib))));
      const LevelNibbles values(codes, scale);
      const Bytes16 qs = LoadBytes(block + 8 + 16 * ib);
      sink.Take(2 * ib, values.Low(qs));
      sink.Take(2 * ib + 1, values.High(qs));
    }
  }
};

}  // namespace decode
}  // namespace HWY_NAMESPACE
}  // namespace warpline
HWY_AFTER_NAMESPACE();

#endif  // the two targets
#endif  // per-target include guard
