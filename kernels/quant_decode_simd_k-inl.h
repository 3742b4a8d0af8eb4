// Vector decoders of the K formats. Per-target header, see quant_decode_simd-inl.h.
#if defined(WARPLINE_KERNELS_QUANT_DECODE_SIMD_K_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLINE_KERNELS_QUANT_DECODE_SIMD_K_INL_H_
#undef WARPLINE_KERNELS_QUANT_DECODE_SIMD_K_INL_H_
#else
#define WARPLINE_KERNELS_QUANT_DECODE_SIMD_K_INL_H_
#endif

#include "kernels/quant_decode_simd-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace warpline {
namespace HWY_NAMESPACE {
namespace decode {

template <>
struct SimdBlock<QuantType::kQ2K> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 84;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    const Bytes16 packed = LoadBytes(block);
    const GroupScales scales(Scaled(Field<0, 15>(packed), BroadcastHalf(block + 80)));
    const GroupScales mins(Scaled(Field<4, 15>(packed), BroadcastHalf(block + 82)));
    for (int half = 0; half < 2; ++half) {
      const Bytes16 a = LoadBytes(block + 16 + 32 * half);
      const Bytes16 b = LoadBytes(block + 32 + 32 * half);
      const int g = 8 * half;
      sink.Take(g, ScaledMinus(Field<0, 3>(a), scales[g], mins[g]));
      sink.Take(g + 1, ScaledMinus(Field<0, 3>(b), scales[g + 1], mins[g + 1]));
      sink.Take(g + 2, ScaledMinus(Field<2, 3>(a), scales[g + 2], mins[g + 2]));
      sink.Take(g + 3, ScaledMinus(Field<2, 3>(b), scales[g + 3], mins[g + 3]));
      sink.Take(g + 4, ScaledMinus(Field<4, 3>(a), scales[g + 4], mins[g + 4]));
      sink.Take(g + 5, ScaledMinus(Field<4, 3>(b), scales[g + 5], mins[g + 5]));
      sink.Take(g + 6, ScaledMinus(Field<6, 3>(a), scales[g + 6], mins[g + 6]));
      sink.Take(g + 7, ScaledMinus(Field<6, 3>(b), scales[g + 7], mins[g + 7]));
    }
  }
};

template <>
struct SimdBlock<QuantType::kQ3K> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 110;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    const uint64_t low = LoadWord64(block + 96);
    const uint64_t high = LoadWord32(block + 104);
    constexpr uint64_t kNibbles = 0x0F0F0F0F0F0F0F0F;
    const uint64_t first = (low & kNibbles) | TopBits(high | (high >> 2) << 32);
    const uint64_t second = ((low >> 4) & kNibbles) | TopBits(high >> 4 | (high >> 6) << 32);
    const Bytes16 codes = hn::Sub(BytesFromWords(first, second), SetBytes(32));
    const GroupScales scales(Scaled(codes, BroadcastHalf(block + 108)));
    const Bytes16 hmask[2] = {LoadBytes(block), LoadBytes(block + 16)};
    TakeHalf<0>(block + 32, hmask, scales, sink);
    TakeHalf<4>(block + 64, hmask, scales, sink);
  }

 private:
  // Two bits of each byte at bits 4 and 5.
  static HWY_INLINE uint64_t TopBits(uint64_t fields) { return (fields & 0x0303030303030303) << 4; }

  // 128 values; the third bit of the first 32 of them is bit kBit.
  template <int kBit, typename Sink>
  static HWY_INLINE void TakeHalf(const uint8_t* qs, const Bytes16 (&hmask)[2],
                                  const GroupScales& scales, Sink& sink) {
    const Bytes16 bytes[2] = {LoadBytes(qs), LoadBytes(qs + 16)};
    constexpr int kGroup = 2 * kBit;
    TakePair<kGroup, 0, kBit>(bytes, hmask, scales, sink);
    TakePair<kGroup + 2, 2, kBit + 1>(bytes, hmask, scales, sink);
    TakePair<kGroup + 4, 4, kBit + 2>(bytes, hmask, scales, sink);
    TakePair<kGroup + 6, 6, kBit + 3>(bytes, hmask, scales, sink);
  }

  template <int kGroup, int kShift, int kBit, typename Sink>
  static HWY_INLINE void TakePair(const Bytes16 (&qs)[2], const Bytes16 (&hmask)[2],
                                  const GroupScales& scales, Sink& sink) {
    sink.Take(kGroup, Scaled(Code<kShift, kBit>(qs[0], hmask[0]), scales[kGroup]));
    sink.Take(kGroup + 1, Scaled(Code<kShift, kBit>(qs[1], hmask[1]), scales[kGroup + 1]));
  }

  template <int kShift, int kBit>
  static HWY_INLINE Bytes16 Code(Bytes16 qs, Bytes16 hmask) {
    const Bytes16 third = ShiftUp<2>(Field<kBit, 1>(hmask));
    return hn::Sub(hn::Or(Field<kShift, 3>(qs), third), SetBytes(4));
  }
};

// Scales and negated minima of the eight groups of Q4_K and Q5_K, multiplied out.
struct ScalesAndOffsets {
  alignas(32) float scales[8];
  alignas(32) float offsets[8];
};

// `block` starts with d, dmin and the twelve packed bytes.
HWY_INLINE void UnpackScalesAndOffsets(const uint8_t* block, ScalesAndOffsets& out) {
  const uint64_t w0 = LoadWord32(block + 4), w1 = LoadWord32(block + 8),
                 w2 = LoadWord32(block + 12);
  const uint64_t scale_codes = (w0 & 0x3F3F3F3F) | ((w2 & 0x0F0F0F0F) | ((w0 >> 2) & 0x30303030))
                                                       << 32;
  const uint64_t min_codes =
      (w1 & 0x3F3F3F3F) | (((w2 >> 4) & 0x0F0F0F0F) | ((w1 >> 2) & 0x30303030)) << 32;
  const hn::FixedTag<float, 8> d;
  const hn::FixedTag<int32_t, 8> d32;
  const hn::FixedTag<uint64_t, 1> d64;
  const hn::FixedTag<int8_t, 8> d8;
  const hn::FixedTag<uint16_t, 8> d16;
  const hn::FixedTag<hwy::float16_t, 8> dh;
  const auto scale =
      hn::PromoteTo(d, hn::BitCast(dh, hn::Set(d16, static_cast<uint16_t>(LoadWord16(block)))));
  const auto min =
      hn::PromoteTo(d, hn::BitCast(dh, hn::Set(d16, static_cast<uint16_t>(LoadWord16(block + 2)))));
  const auto scale_values = hn::PromoteTo(d32, hn::BitCast(d8, hn::Set(d64, scale_codes)));
  const auto min_values = hn::PromoteTo(d32, hn::BitCast(d8, hn::Set(d64, min_codes)));
  hn::Store(hn::Mul(hn::ConvertTo(d, scale_values), scale), d, out.scales);
  hn::Store(hn::Mul(hn::ConvertTo(d, min_values), hn::Neg(min)), d, out.offsets);
  KeepInMemory(out);
}

template <>
struct SimdBlock<QuantType::kQ4K> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 144;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    ScalesAndOffsets unpacked;
    UnpackScalesAndOffsets(block, unpacked);
    for (int c = 0; c < 4; ++c) {
      const AffineNibbles low(hn::Set(FloatTag(), unpacked.scales[2 * c]),
                              hn::Set(FloatTag(), unpacked.offsets[2 * c]));
      const AffineNibbles high(hn::Set(FloatTag(), unpacked.scales[2 * c + 1]),
                               hn::Set(FloatTag(), unpacked.offsets[2 * c + 1]));
      const Bytes16 first = LoadBytes(block + 16 + 32 * c);
      const Bytes16 second = LoadBytes(block + 32 + 32 * c);
      sink.Take(4 * c, low.Low(first));
      sink.Take(4 * c + 1, low.Low(second));
      sink.Take(4 * c + 2, high.High(first));
      sink.Take(4 * c + 3, high.High(second));
    }
  }
};

template <>
struct SimdBlock<QuantType::kQ5K> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 176;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    ScalesAndOffsets unpacked;
    UnpackScalesAndOffsets(block, unpacked);
    const Bytes16 qh[2] = {LoadBytes(block + 16), LoadBytes(block + 32)};
    TakePair<0>(block + 48, qh, unpacked, sink);
    TakePair<2>(block + 80, qh, unpacked, sink);
    TakePair<4>(block + 112, qh, unpacked, sink);
    TakePair<6>(block + 144, qh, unpacked, sink);
  }

 private:
  // Groups kGroup and kGroup + 1.
  template <int kGroup, typename Sink>
  static HWY_INLINE void TakePair(const uint8_t* qs, const Bytes16 (&qh)[2],
                                  const ScalesAndOffsets& unpacked, Sink& sink) {
    const FloatVec low_scale = hn::Set(FloatTag(), unpacked.scales[kGroup]);
    const FloatVec low_offset = hn::Set(FloatTag(), unpacked.offsets[kGroup]);
    const FloatVec high_scale = hn::Set(FloatTag(), unpacked.scales[kGroup + 1]);
    const FloatVec high_offset = hn::Set(FloatTag(), unpacked.offsets[kGroup + 1]);
    const Bytes16 bytes[2] = {LoadBytes(qs), LoadBytes(qs + 16)};
    for (int i = 0; i < 2; ++i) {
      const Bytes16 fifth = ShiftUp<4>(Field<kGroup, 1>(qh[i]));
      sink.Take(2 * kGroup + i,
                ScaledPlus(hn::Or(Field<0, 15>(bytes[i]), fifth), low_scale, low_offset));
    }
    for (int i = 0; i < 2; ++i) {
      const Bytes16 fifth = ShiftUp<4>(Field<kGroup + 1, 1>(qh[i]));
      sink.Take(2 * kGroup + 2 + i,
                ScaledPlus(hn::Or(Field<4, 15>(bytes[i]), fifth), high_scale, high_offset));
    }
  }
};

template <>
struct SimdBlock<QuantType::kQ6K> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 210;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    const GroupScales scales(Scaled(LoadBytes(block + 192), BroadcastHalf(block + 208)));
    TakeHalf(block, block + 128, scales, 0, sink);
    TakeHalf(block + 64, block + 160, scales, 8, sink);
  }

 private:
  // 128 values, from group g on: quarters 0 and 1 are low nibbles, 2 and 3 high ones.
  template <typename Sink>
  static HWY_INLINE void TakeHalf(const uint8_t* ql, const uint8_t* qh, const GroupScales& scales,
                                  int g, Sink& sink) {
    const Bytes16 l0 = LoadBytes(ql), l1 = LoadBytes(ql + 16);
    const Bytes16 l2 = LoadBytes(ql + 32), l3 = LoadBytes(ql + 48);
    const Bytes16 h0 = LoadBytes(qh), h1 = LoadBytes(qh + 16);
    sink.Take(g, Scaled(Code(Field<0, 15>(l0), Field<0, 3>(h0)), scales[g]));
    sink.Take(g + 1, Scaled(Code(Field<0, 15>(l1), Field<0, 3>(h1)), scales[g + 1]));
    sink.Take(g + 2, Scaled(Code(Field<0, 15>(l2), Field<2, 3>(h0)), scales[g + 2]));
    sink.Take(g + 3, Scaled(Code(Field<0, 15>(l3), Field<2, 3>(h1)), scales[g + 3]));
    sink.Take(g + 4, Scaled(Code(Field<4, 15>(l0), Field<4, 3>(h0)), scales[g + 4]));
    sink.Take(g + 5, Scaled(Code(Field<4, 15>(l1), Field<4, 3>(h1)), scales[g + 5]));
    sink.Take(g + 6, Scaled(Code(Field<4, 15>(l2), Field<6, 3>(h0)), scales[g + 6]));
    sink.Take(g + 7, Scaled(Code(Field<4, 15>(l3), Field<6, 3>(h1)), scales[g + 7]));
  }

  static HWY_INLINE Bytes16 Code(Bytes16 low, Bytes16 high) {
    return hn::Sub(hn::Or(low, ShiftUp<4>(high)), SetBytes(32));
  }
};

}  // namespace decode
}  // namespace HWY_NAMESPACE
}  // namespace warpline
HWY_AFTER_NAMESPACE();

#endif  // the two targets
#endif  // per-target include guard
