// Vector decoders of the tensor types, for code that is compiled once for each instruction set
// (Highway targets AVX2 and AVX3; empty for others). A decoder hands sixteen consecutive values at
// a time to a sink, which stores them or multiplies them at once:
//
//   struct DotSink {  // sixteen partial sums with the activations x of this block
//     void Take(int sixteenth, decode::Floats16 values) {
//       sum = Fma(Load(x + 16 * sixteenth), Vec16{values.a /* AVX2: , values.b */}, sum);
//     }
//     const float* x;
//     Vec16 sum;
//   };
//   decode::SimdBlock<QuantType::kQ4_1>::Decode(block, HostQuantGrids(), sink);
//
// A decoder calls Take once for every sixteenth of the block, in ascending order, so that sums keep
// their order along the row. SimdBlock<type> has kValues and kBytes (of F32, F16 and BF16: those of
// 16 values) and gives the same bits as BlockOf<type>. The K formats are in
// quant_decode_simd_k-inl.h, the IQ formats in quant_decode_simd_iq-inl.h.
#if defined(WARPLINE_KERNELS_QUANT_DECODE_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLINE_KERNELS_QUANT_DECODE_SIMD_INL_H_
#undef WARPLINE_KERNELS_QUANT_DECODE_SIMD_INL_H_
#else
#define WARPLINE_KERNELS_QUANT_DECODE_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/quant_decode_common.h"
#include "kernels/quant_decode_vectors-inl.h"
#include "model/quant.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace warpline {
namespace HWY_NAMESPACE {
namespace decode {

template <QuantType kType>
struct SimdBlock;

template <>
struct SimdBlock<QuantType::kF32> {
  static constexpr int kValues = 16;
  static constexpr int kBytes = 64;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    sink.Take(0, LoadFloats(reinterpret_cast<const float*>(block)));
  }
};

template <>
struct SimdBlock<QuantType::kF16> {
  static constexpr int kValues = 16;
  static constexpr int kBytes = 32;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    sink.Take(0, LoadHalves(block));
  }
};

template <>
struct SimdBlock<QuantType::kBF16> {
  static constexpr int kValues = 16;
  static constexpr int kBytes = 32;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    sink.Take(0, LoadBfloats(block));
  }
};

template <>
struct SimdBlock<QuantType::kQ4_0> {
  static constexpr int kValues = 32;
  static constexpr int kBytes = 18;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    const BiasedNibbles<8> values(BroadcastHalf(block));
    const Bytes16 qs = LoadBytes(block + 2);
    sink.Take(0, values.Low(qs));
    sink.Take(1, values.High(qs));
  }
};

template <>
struct SimdBlock<QuantType::kQ4_1> {
  static constexpr int kValues = 32;
  static constexpr int kBytes = 20;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    const AffineNibbles values(BroadcastHalf(block), BroadcastHalf(block + 2));
    const Bytes16 qs = LoadBytes(block + 4);
    sink.Take(0, values.Low(qs));
    sink.Take(1, values.High(qs));
  }
};

template <>
struct SimdBlock<QuantType::kQ5_0> {
  static constexpr int kValues = 32;
  static constexpr int kBytes = 22;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    const FloatVec d = BroadcastHalf(block);
    const uint32_t qh = LoadWord32(block + 2);
    const Bytes16 qs = LoadBytes(block + 6);
    // The fifth bit's absence takes 16 away: nibble + 16 bit - 16.
    const Bytes16 sixteen = SetBytes(16);
    const Bytes16 low = Field<0, 15>(qs);
    const Bytes16 high = Field<4, 15>(qs);
    sink.Take(0, Scaled(hn::IfThenElse(MaskOf16(qh), low, hn::Sub(low, sixteen)), d));
    sink.Take(1, Scaled(hn::IfThenElse(MaskOf16(qh >> 16), high, hn::Sub(high, sixteen)), d));
  }
};

template <>
struct SimdBlock<QuantType::kQ5_1> {
  static constexpr int kValues = 32;
  static constexpr int kBytes = 24;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    const FloatVec d = BroadcastHalf(block);
    const FloatVec m = BroadcastHalf(block + 2);
    const uint32_t qh = LoadWord32(block + 4);
    const Bytes16 qs = LoadBytes(block + 8);
    const Bytes16 sixteen = SetBytes(16);
    const Bytes16 low = Field<0, 15>(qs);
    const Bytes16 high = Field<4, 15>(qs);
    sink.Take(0, ScaledPlus(hn::IfThenElse(MaskOf16(qh), hn::Or(low, sixteen), low), d, m));
    sink.Take(1, ScaledPlus(hn::IfThenElse(MaskOf16(qh >> 16), hn::Or(high, sixteen), high), d, m));
  }
};

template <>
struct SimdBlock<QuantType::kQ8_0> {
  static constexpr int kValues = 32;
  static constexpr int kBytes = 34;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    const FloatVec d = BroadcastHalf(block);
    sink.Take(0, Scaled(LoadBytes(block + 2), d));
    sink.Take(1, Scaled(LoadBytes(block + 18), d));
  }
};

template <>
struct SimdBlock<QuantType::kQ1_0> {
  static constexpr int kValues = 128;
  static constexpr int kBytes = 18;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    const FloatVec d = BroadcastHalf(block);
    for (int i = 0; i < 8; ++i) {
      const auto mask = MaskOf16(LoadWord16(block + 2 + 2 * i));
      sink.Take(i, Scaled(hn::IfThenElse(mask, SetBytes(1), SetBytes(-1)), d));
    }
  }
};

template <>
struct SimdBlock<QuantType::kQ2_0> {
  static constexpr int kValues = 64;
  static constexpr int kBytes = 18;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    const FloatVec d = BroadcastHalf(block);
    const Bytes16 qs = LoadBytes(block + 2);
    // Fields 0 to 3 of byte i become bytes 4i to 4i + 3 of the block.
    const Bytes16 f0 = Field<0, 3>(qs), f1 = Field<2, 3>(qs), f2 = Field<4, 3>(qs),
                  f3 = Field<6, 3>(qs);
    const BytePair even = InterleaveBytes(f0, f2);
    const BytePair odd = InterleaveBytes(f1, f3);
    const BytePair first = InterleaveBytes(even.low, odd.low);
    const BytePair second = InterleaveBytes(even.high, odd.high);
    const Bytes16 one = SetBytes(1);
    sink.Take(0, Scaled(hn::Sub(first.low, one), d));
    sink.Take(1, Scaled(hn::Sub(first.high, one), d));
    sink.Take(2, Scaled(hn::Sub(second.low, one), d));
    sink.Take(3, Scaled(hn::Sub(second.high, one), d));
  }
};

template <>
struct SimdBlock<QuantType::kMXFP4> {
  static constexpr int kValues = 32;
  static constexpr int kBytes = 17;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids& grids, Sink& sink) {
    const FloatVec scale = hn::Set(FloatTag(), Mxfp4Scale(block[0]));
    const LevelNibbles values(LoadBytes(grids.fp4_codes), scale);
    const Bytes16 qs = LoadBytes(block + 1);
    sink.Take(0, values.Low(qs));
    sink.Take(1, values.High(qs));
  }
};

template <>
struct SimdBlock<QuantType::kNVFP4> {
  static constexpr int kValues = 64;
  static constexpr int kBytes = 36;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids& grids, Sink& sink) {
    const Bytes16 codes = LoadBytes(grids.fp4_codes);
    for (int i = 0; i < 2; ++i) {
      const Bytes16 qs = LoadBytes(block + 4 + 16 * i);
      const BytePair pair = InterleaveHalves(Field<0, 15>(qs), Field<4, 15>(qs));
      const FloatVec first = hn::Set(FloatTag(), Nvfp4Scale(block[2 * i]));
      const FloatVec second = hn::Set(FloatTag(), Nvfp4Scale(block[2 * i + 1]));
      sink.Take(2 * i, Scaled(hn::TableLookupBytes(codes, pair.low), first));
      sink.Take(2 * i + 1, Scaled(hn::TableLookupBytes(codes, pair.high), second));
    }
  }
};

template <>
struct SimdBlock<QuantType::kTQ2_0> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 66;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    const FloatVec d = BroadcastHalf(block + 64);
    const Bytes16 one = SetBytes(1);
    for (int half = 0; half < 2; ++half) {
      const Bytes16 a = LoadBytes(block + 32 * half);
      const Bytes16 b = LoadBytes(block + 32 * half + 16);
      const int first = 8 * half;
      sink.Take(first, Scaled(hn::Sub(Field<0, 3>(a), one), d));
      sink.Take(first + 1, Scaled(hn::Sub(Field<0, 3>(b), one), d));
      sink.Take(first + 2, Scaled(hn::Sub(Field<2, 3>(a), one), d));
      sink.Take(first + 3, Scaled(hn::Sub(Field<2, 3>(b), one), d));
      sink.Take(first + 4, Scaled(hn::Sub(Field<4, 3>(a), one), d));
      sink.Take(first + 5, Scaled(hn::Sub(Field<4, 3>(b), one), d));
      sink.Take(first + 6, Scaled(hn::Sub(Field<6, 3>(a), one), d));
      sink.Take(first + 7, Scaled(hn::Sub(Field<6, 3>(b), one), d));
    }
  }
};

template <>
struct SimdBlock<QuantType::kTQ1_0> {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 54;
  template <typename Sink>
  static HWY_INLINE void Decode(const uint8_t* block, const QuantGrids&, Sink& sink) {
    const FloatVec d = BroadcastHalf(block + 52);
    Bytes16 a = LoadBytes(block);
    Bytes16 b = LoadBytes(block + 16);
    for (int n = 0; n < 5; ++n) {
      sink.Take(2 * n, Scaled(LeadingDigit(a), d));
      sink.Take(2 * n + 1, Scaled(LeadingDigit(b), d));
      a = Tripled(a);
      b = Tripled(b);
    }
    Bytes16 c = LoadBytes(block + 32);
    for (int n = 0; n < 5; ++n) {
      sink.Take(10 + n, Scaled(LeadingDigit(c), d));
      c = Tripled(c);
    }
    const Bytes16 n0 = BroadcastWord(LoadWord32(block + 48));
    const Bytes16 n1 = Tripled(n0), n2 = Tripled(n1), n3 = Tripled(n2);
    sink.Take(
        15,
        Scaled(LeadingDigit(InterleaveHalves(InterleaveWords(n0, n1), InterleaveWords(n2, n3)).low),
               d));
  }

 private:
  static HWY_INLINE Bytes16 Tripled(Bytes16 v) { return hn::Add(v, hn::Add(v, v)); }
  // (byte * 3) >> 8, less 1: whether the byte is at least 86 and at least 171.
  static HWY_INLINE Bytes16 LeadingDigit(Bytes16 v) {
    const hn::FixedTag<uint8_t, 16> du;
    const auto bytes = hn::BitCast(du, v);
    const auto over85 = hn::VecFromMask(du, hn::Eq(hn::Max(bytes, hn::Set(du, 86)), bytes));
    const auto over170 = hn::VecFromMask(du, hn::Eq(hn::Max(bytes, hn::Set(du, 171)), bytes));
    const ByteTag d;
    return hn::Sub(hn::Sub(SetBytes(-1), hn::BitCast(d, over85)), hn::BitCast(d, over170));
  }
};

}  // namespace decode
}  // namespace HWY_NAMESPACE
}  // namespace warpline
HWY_AFTER_NAMESPACE();

#endif  // the two targets
#endif  // per-target include guard
