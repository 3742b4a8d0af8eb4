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
    for (int i = 0; i < 4; ++i) {
      const Bytes16 qs = LoadBytes(block + 16 + 16 * i);
      const int g = 8 * (i / 2) + i % 2;
      sink.Take(g, ScaledMinus(Field<0, 3>(qs), scales[g], mins[g]));
      sink.Take(g + 2, ScaledMinus(Field<2, 3>(qs), scales[g + 2], mins[g + 2]));
      sink.Take(g + 4, ScaledMinus(Field<4, 3>(qs), scales[g + 4], mins[g + 4]));
      sink.Take(g + 6, ScaledMinus(Field<6, 3>(qs), scales[g + 6], mins[g + 6]));
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
    for (int i = 0; i < 2; ++i) {
      TakeHalf<0>(LoadBytes(block + 32 + 16 * i), hmask[i], scales, i, sink);
      TakeHalf<4>(LoadBytes(block + 64 + 16 * i), hmask[i], scales, 8 + i, sink);
    }
  }

 private:
  // Two bits of each byte at bits 4 and 5.
  static HWY_INLINE uint64_t TopBits(uint64_t fields) { return (fields & 0x0303030303030303) << 4; }

  template <int kBit, typename Sink>
  static HWY_INLINE void TakeHalf(Bytes16 qs, Bytes16 hmask, const GroupScales& scales, int g,
                                  Sink& sink) {
    sink.Take(g, Scaled(Code<0, kBit>(qs, hmask), scales[g]));
    sink.Take(g + 2, Scaled(Code<2, kBit + 1>(qs, hmask), scales[g + 2]));
    sink.Take(g + 4, Scaled(Code<4, kBit + 2>(qs, hmask), scales[g + 4]));
    sink.Take(g + 6, Scaled(Code<6, kBit + 3>(qs, hmask), scales[g + 6]));
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
    for (int i = 0; i < 2; ++i) {
      const Bytes16 bytes = LoadBytes(qs + 16 * i);
      const Bytes16 low = hn::Or(Field<0, 15>(bytes), ShiftUp<4>(Field<kGroup, 1>(qh[i])));
      const Bytes16 high = hn::Or(Field<4, 15>(bytes), ShiftUp<4>(Field<kGroup + 1, 1>(qh[i])));
      sink.Take(2 * kGroup + i, ScaledPlus(low, low_scale, low_offset));
      sink.Take(2 * kGroup + 2 + i, ScaledPlus(high, high_scale, high_offset));
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
    for (int i = 0; i < 4; ++i) {  // sixteen values of each quarter of a half
      const int half = i / 2;
      const int offset = 16 * (i % 2);
      const Bytes16 first = LoadBytes(block + 64 * half + offset);
      const Bytes16 second = LoadBytes(block + 64 * half + 32 + offset);
      const Bytes16 qh = LoadBytes(block + 128 + 32 * half + offset);
      const int g = 8 * half + i % 2;
      sink.Take(g, Scaled(Code(Field<0, 15>(first), Field<0, 3>(qh)), scales[g]));
      sink.Take(g + 2, Scaled(Code(Field<0, 15>(second), Field<2, 3>(qh)), scales[g + 2]));
      sink.Take(g + 4, Scaled(Code(Field<4, 15>(first), Field<4, 3>(qh)), scales[g + 4]));
      sink.Take(g + 6, Scaled(Code(Field<4, 15>(second), Field<6, 3>(qh)), scales[g + 6]));
    }
  }

 private:
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
