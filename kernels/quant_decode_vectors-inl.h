// Sixteen bytes and sixteen floats: the vectors that the SIMD decoders are written in, the same on
// AVX2 (two registers of floats) and AVX-512 (one). Per-target header, see quant_decode_simd-inl.h.
#if defined(WARPLINE_KERNELS_QUANT_DECODE_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLINE_KERNELS_QUANT_DECODE_VECTORS_INL_H_
#undef WARPLINE_KERNELS_QUANT_DECODE_VECTORS_INL_H_
#else
#define WARPLINE_KERNELS_QUANT_DECODE_VECTORS_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace warpline {
namespace HWY_NAMESPACE {
namespace decode {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
using ByteTag = hn::FixedTag<int8_t, 16>;
using Bytes16 = hn::Vec<ByteTag>;

// Values 0 to 15; `b` holds 8 to 15 where a register has eight lanes.
struct Floats16 {
  FloatVec a;
#if HWY_TARGET != HWY_AVX3
  FloatVec b;
#endif
};

struct BytePair {
  Bytes16 low;
  Bytes16 high;
};

HWY_INLINE uint32_t LoadWord16(const void* bytes) {
  uint16_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}
HWY_INLINE uint32_t LoadWord32(const void* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}
HWY_INLINE uint64_t LoadWord64(const void* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

HWY_INLINE Bytes16 SetBytes(int value) { return hn::Set(ByteTag(), static_cast<int8_t>(value)); }
HWY_INLINE Bytes16 LoadBytes(const int8_t* bytes) { return hn::LoadU(ByteTag(), bytes); }
HWY_INLINE Bytes16 LoadBytes(const uint8_t* bytes) {
  return LoadBytes(reinterpret_cast<const int8_t*>(bytes));
}
HWY_INLINE Bytes16 BroadcastWord(uint32_t word) {
  return hn::BitCast(ByteTag(), hn::Set(hn::FixedTag<uint32_t, 4>(), word));
}
HWY_INLINE Bytes16 BytesFromWords(uint64_t low, uint64_t high) {
  const hn::FixedTag<uint64_t, 2> d;
  return hn::BitCast(ByteTag(), hn::InterleaveLower(d, hn::Set(d, low), hn::Set(d, high)));
}

// (byte >> kShift) & kMask; kMask must not reach beyond the byte's own bits.
template <int kShift, int kMask>
HWY_INLINE Bytes16 Field(Bytes16 v) {
  static_assert((kMask << kShift) <= 255, "the field must lie in the byte");
  const hn::FixedTag<uint16_t, 8> d16;
  const Bytes16 shifted = hn::BitCast(ByteTag(), hn::ShiftRight<kShift>(hn::BitCast(d16, v)));
  return hn::And(shifted, SetBytes(kMask));
}

// byte << kShift for bytes that stay below 256.
template <int kShift>
HWY_INLINE Bytes16 ShiftUp(Bytes16 v) {
  const hn::FixedTag<uint16_t, 8> d16;
  return hn::BitCast(ByteTag(), hn::ShiftLeft<kShift>(hn::BitCast(d16, v)));
}

// Lane i is true where bit i of `bits` is set.
HWY_INLINE hn::Mask<ByteTag> MaskOf16(uint32_t bits) {
  const uint64_t wide = bits;
  return hn::LoadMaskBits(ByteTag(), reinterpret_cast<const uint8_t*>(&wide));
}

// a0 b0 a1 b1 .., by bytes.
HWY_INLINE BytePair InterleaveBytes(Bytes16 a, Bytes16 b) {
  return {hn::InterleaveLower(ByteTag(), a, b), hn::InterleaveUpper(ByteTag(), a, b)};
}
// The first halves of a and b, and their second halves.
HWY_INLINE BytePair InterleaveHalves(Bytes16 a, Bytes16 b) {
  const hn::FixedTag<uint64_t, 2> d;
  const auto a64 = hn::BitCast(d, a), b64 = hn::BitCast(d, b);
  return {hn::BitCast(ByteTag(), hn::InterleaveLower(d, a64, b64)),
          hn::BitCast(ByteTag(), hn::InterleaveUpper(d, a64, b64))};
}
// a0 b0 a1 b1 of 32-bit words.
HWY_INLINE Bytes16 InterleaveWords(Bytes16 a, Bytes16 b) {
  const hn::FixedTag<uint32_t, 4> d;
  return hn::BitCast(ByteTag(), hn::InterleaveLower(d, hn::BitCast(d, a), hn::BitCast(d, b)));
}

HWY_INLINE Floats16 LoadFloats(const float* p) {
  const FloatTag d;
#if HWY_TARGET == HWY_AVX3
  return {hn::LoadU(d, p)};
#else
  return {hn::LoadU(d, p), hn::LoadU(d, p + 8)};
#endif
}

HWY_INLINE void StoreFloats(Floats16 v, float* p) {
  const FloatTag d;
  hn::StoreU(v.a, d, p);
#if HWY_TARGET != HWY_AVX3
  hn::StoreU(v.b, d, p + 8);
#endif
}

// Sixteen half floats.
HWY_INLINE Floats16 LoadHalves(const uint8_t* p) {
  const FloatTag d;
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  const uint16_t* const words = reinterpret_cast<const uint16_t*>(p);
#if HWY_TARGET == HWY_AVX3
  return {hn::PromoteTo(d, hn::BitCast(dh, hn::LoadU(d16, words)))};
#else
  return {hn::PromoteTo(d, hn::BitCast(dh, hn::LoadU(d16, words))),
          hn::PromoteTo(d, hn::BitCast(dh, hn::LoadU(d16, words + 8)))};
#endif
}

HWY_INLINE FloatVec WidenBfloats(const uint16_t* words) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::Rebind<uint32_t, FloatTag> d32;
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, words))));
}

HWY_INLINE Floats16 LoadBfloats(const uint8_t* p) {
  const uint16_t* const words = reinterpret_cast<const uint16_t*>(p);
#if HWY_TARGET == HWY_AVX3
  return {WidenBfloats(words)};
#else
  return {WidenBfloats(words), WidenBfloats(words + 8)};
#endif
}

// The half float with these bits, or at `bytes`, in all lanes.
HWY_INLINE FloatVec BroadcastHalfBits(uint32_t bits) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  return hn::PromoteTo(FloatTag(), hn::BitCast(dh, hn::Set(d16, static_cast<uint16_t>(bits))));
}
HWY_INLINE FloatVec BroadcastHalf(const uint8_t* bytes) {
  return BroadcastHalfBits(LoadWord16(bytes));
}

HWY_INLINE Floats16 ToFloats(Bytes16 v) {
  const FloatTag d;
  const hn::Rebind<int32_t, FloatTag> d32;
#if HWY_TARGET == HWY_AVX3
  return {hn::ConvertTo(d, hn::PromoteTo(d32, v))};
#else
  const hn::Half<ByteTag> half;
  return {hn::ConvertTo(d, hn::PromoteTo(d32, hn::LowerHalf(half, v))),
          hn::ConvertTo(d, hn::PromoteTo(d32, hn::UpperHalf(half, v)))};
#endif
}

// v * scale
HWY_INLINE Floats16 Scaled(Bytes16 v, FloatVec scale) {
  const Floats16 f = ToFloats(v);
#if HWY_TARGET == HWY_AVX3
  return {hn::Mul(f.a, scale)};
#else
  return {hn::Mul(f.a, scale), hn::Mul(f.b, scale)};
#endif
}

// v * scale + offset. The product is exact for every format, so the fused form rounds as the plain
// one does.
HWY_INLINE Floats16 ScaledPlus(Bytes16 v, FloatVec scale, FloatVec offset) {
  const Floats16 f = ToFloats(v);
#if HWY_TARGET == HWY_AVX3
  return {hn::MulAdd(f.a, scale, offset)};
#else
  return {hn::MulAdd(f.a, scale, offset), hn::MulAdd(f.b, scale, offset)};
#endif
}

// v * scale - offset
HWY_INLINE Floats16 ScaledMinus(Bytes16 v, FloatVec scale, FloatVec offset) {
  const Floats16 f = ToFloats(v);
#if HWY_TARGET == HWY_AVX3
  return {hn::MulSub(f.a, scale, offset)};
#else
  return {hn::MulSub(f.a, scale, offset), hn::MulSub(f.b, scale, offset)};
#endif
}

// Values of the low and the high nibbles of sixteen bytes. With AVX-512 all sixteen possible values
// are worked out once and looked up by the low four bits of a lane; that rounds as the formula
// does.
#if HWY_TARGET == HWY_AVX3
class NibbleTable {
 public:
  explicit NibbleTable(Floats16 values) : values_(values) {}
  HWY_INLINE Floats16 Low(Bytes16 qs) const { return LookUp(hn::PromoteTo(IndexTag(), qs)); }
  HWY_INLINE Floats16 High(Bytes16 qs) const {
    return LookUp(hn::ShiftRight<4>(hn::PromoteTo(IndexTag(), qs)));
  }

 private:
  using IndexTag = hn::Rebind<int32_t, FloatTag>;
  HWY_INLINE Floats16 LookUp(hn::Vec<IndexTag> indices) const {
    return {FloatVec{_mm512_permutexvar_ps(indices.raw, values_.a.raw)}};
  }
  Floats16 values_;
};
#endif

// (nibble - kBias) * scale
template <int kBias>
#if HWY_TARGET == HWY_AVX3
struct BiasedNibbles : NibbleTable {
  explicit BiasedNibbles(FloatVec scale)
      : NibbleTable({hn::Mul(hn::Iota(FloatTag(), static_cast<float>(-kBias)), scale)}) {}
};
#else
struct BiasedNibbles {
  explicit BiasedNibbles(FloatVec scale_values) : scale(scale_values) {}
  HWY_INLINE Floats16 Low(Bytes16 qs) const {
    return Scaled(hn::Sub(Field<0, 15>(qs), SetBytes(kBias)), scale);
  }
  HWY_INLINE Floats16 High(Bytes16 qs) const {
    return Scaled(hn::Sub(Field<4, 15>(qs), SetBytes(kBias)), scale);
  }
  FloatVec scale;
};
#endif

// nibble * scale + offset
#if HWY_TARGET == HWY_AVX3
struct AffineNibbles : NibbleTable {
  AffineNibbles(FloatVec scale, FloatVec offset)
      : NibbleTable({hn::MulAdd(hn::Iota(FloatTag(), 0.0f), scale, offset)}) {}
};
#else
struct AffineNibbles {
  AffineNibbles(FloatVec scale_values, FloatVec offset_values)
      : scale(scale_values), offset(offset_values) {}
  HWY_INLINE Floats16 Low(Bytes16 qs) const { return ScaledPlus(Field<0, 15>(qs), scale, offset); }
  HWY_INLINE Floats16 High(Bytes16 qs) const { return ScaledPlus(Field<4, 15>(qs), scale, offset); }
  FloatVec scale;
  FloatVec offset;
};
#endif

// levels[nibble] * scale
#if HWY_TARGET == HWY_AVX3
struct LevelNibbles : NibbleTable {
  LevelNibbles(Bytes16 levels, FloatVec scale) : NibbleTable(Scaled(levels, scale)) {}
};
#else
struct LevelNibbles {
  LevelNibbles(Bytes16 level_values, FloatVec scale_values)
      : levels(level_values), scale(scale_values) {}
  HWY_INLINE Floats16 Low(Bytes16 qs) const {
    return Scaled(hn::TableLookupBytes(levels, Field<0, 15>(qs)), scale);
  }
  HWY_INLINE Floats16 High(Bytes16 qs) const {
    return Scaled(hn::TableLookupBytes(levels, Field<4, 15>(qs)), scale);
  }
  Bytes16 levels;
  FloatVec scale;
};
#endif

// Makes the compiler store an array and reload its elements. A broadcast from memory takes a load
// port; taken from a register, which compilers prefer, it competes with the decoder's own shuffles.
template <typename T>
HWY_INLINE void KeepInMemory(T& array) {
  asm("" : "+m"(array));
}

// The scales of a block's sixteen groups, written once and then broadcast one by one.
class GroupScales {
 public:
  explicit GroupScales(Floats16 values) {
    StoreFloats(values, values_);
    KeepInMemory(values_);
  }
  HWY_INLINE FloatVec operator[](int group) const { return hn::Set(FloatTag(), values_[group]); }

 private:
  alignas(64) float values_[16];
};

}  // namespace decode
}  // namespace HWY_NAMESPACE
}  // namespace warpline
HWY_AFTER_NAMESPACE();

#endif  // the two targets
#endif  // per-target include guard
