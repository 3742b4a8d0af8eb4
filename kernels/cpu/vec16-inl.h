// Sixteen f32 lanes, one register with AVX-512 and two with AVX2. Every function here rounds the
// same way on both, so that whatever is written over Vec16 gives the same bits. Included once per
// target by hwy/foreach_target.h.
#if defined(WARPLINE_KERNELS_CPU_VEC16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLINE_KERNELS_CPU_VEC16_INL_H_
#undef WARPLINE_KERNELS_CPU_VEC16_INL_H_
#else
#define WARPLINE_KERNELS_CPU_VEC16_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace warpline {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;
using NativeFloat = hn::Vec<FloatTag>;

constexpr bool kWide = HWY_TARGET == HWY_AVX3;  // a Vec16 is one register
constexpr int kLanes = 16;

// Applies `f` to each register of one to three Vec16.
#if HWY_TARGET == HWY_AVX3
struct Vec16 {
  NativeFloat a;
};
#define WL_EACH1(f, x) \
  Vec16 { f((x).a) }
#define WL_EACH2(f, x, y) \
  Vec16 { f((x).a, (y).a) }
#define WL_EACH3(f, x, y, z) \
  Vec16 { f((x).a, (y).a, (z).a) }
#else
struct Vec16 {
  NativeFloat a, b;
};
#define WL_EACH1(f, x) \
  Vec16 { f((x).a), f((x).b) }
#define WL_EACH2(f, x, y) \
  Vec16 { f((x).a, (y).a), f((x).b, (y).b) }
#define WL_EACH3(f, x, y, z) \
  Vec16 { f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b) }
#endif

HWY_INLINE Vec16 Set(float value) {
  const NativeFloat v = hn::Set(FloatTag(), value);
#if HWY_TARGET == HWY_AVX3
  return {v};
#else
  return {v, v};
#endif
}
HWY_INLINE Vec16 Zero() { return Set(0.0f); }

HWY_INLINE Vec16 Load(const float* from) {
#if HWY_TARGET == HWY_AVX3
  return {hn::LoadU(FloatTag(), from)};
#else
  return {hn::LoadU(FloatTag(), from), hn::LoadU(FloatTag(), from + 8)};
#endif
}

// The first `count` (1 to 15) lanes; the others are zero. Reads nothing beyond them.
HWY_INLINE Vec16 LoadPartial(const float* from, int64_t count) {
  const FloatTag d;
#if HWY_TARGET == HWY_AVX3
  return {hn::MaskedLoad(hn::FirstN(d, count), d, from)};
#else
  if (count <= 8) return {hn::MaskedLoad(hn::FirstN(d, count), d, from), hn::Zero(d)};
  return {hn::LoadU(d, from), hn::MaskedLoad(hn::FirstN(d, count - 8), d, from + 8)};
#endif
}

HWY_INLINE void Store(Vec16 v, float* to) {
#if HWY_TARGET == HWY_AVX3
  hn::StoreU(v.a, FloatTag(), to);
#else
  hn::StoreU(v.a, FloatTag(), to);
  hn::StoreU(v.b, FloatTag(), to + 8);
#endif
}

HWY_INLINE void StorePartial(Vec16 v, int64_t count, float* to) {
  const FloatTag d;
#if HWY_TARGET == HWY_AVX3
  hn::BlendedStore(v.a, hn::FirstN(d, count), d, to);
#else
  if (count <= 8) {
    hn::BlendedStore(v.a, hn::FirstN(d, count), d, to);
  } else {
    hn::StoreU(v.a, d, to);
    hn::BlendedStore(v.b, hn::FirstN(d, count - 8), d, to + 8);
  }
#endif
}

// min(count, 16) lanes.
HWY_INLINE Vec16 LoadUpTo(const float* from, int64_t count) {
  return count >= kLanes ? Load(from) : LoadPartial(from, count);
}
HWY_INLINE void StoreUpTo(Vec16 v, int64_t count, float* to) {
  if (count >= kLanes) {
    Store(v, to);
  } else {
    StorePartial(v, count, to);
  }
}

HWY_INLINE Vec16 Add(Vec16 x, Vec16 y) { return WL_EACH2(hn::Add, x, y); }
HWY_INLINE Vec16 Sub(Vec16 x, Vec16 y) { return WL_EACH2(hn::Sub, x, y); }
HWY_INLINE Vec16 Mul(Vec16 x, Vec16 y) { return WL_EACH2(hn::Mul, x, y); }
HWY_INLINE Vec16 Div(Vec16 x, Vec16 y) { return WL_EACH2(hn::Div, x, y); }
HWY_INLINE Vec16 Max(Vec16 x, Vec16 y) { return WL_EACH2(hn::Max, x, y); }
HWY_INLINE Vec16 Neg(Vec16 x) { return WL_EACH1(hn::Neg, x); }
HWY_INLINE Vec16 Abs(Vec16 x) { return WL_EACH1(hn::Abs, x); }
// x y + z, rounded once.
HWY_INLINE Vec16 Fma(Vec16 x, Vec16 y, Vec16 z) { return WL_EACH3(hn::MulAdd, x, y, z); }
// Neighbours (0,1), (2,3), ... change places.
HWY_INLINE Vec16 SwapPairs(Vec16 x) { return WL_EACH1(hn::Shuffle2301, x); }

// Lanes in [low, high) from x, the others from y.
HWY_INLINE Vec16 SelectRange(int low, int high, Vec16 x, Vec16 y) {
  const FloatTag d;
  const IntTag di;
  const auto lo = hn::Set(di, low);
  const auto hi = hn::Set(di, high);
#if HWY_TARGET == HWY_AVX3
  const auto lane = hn::Iota(di, 0);
  const auto inside = hn::AndNot(hn::Lt(lane, lo), hn::Lt(lane, hi));
  return {hn::IfThenElse(hn::RebindMask(d, inside), x.a, y.a)};
#else
  const auto lane_a = hn::Iota(di, 0);
  const auto lane_b = hn::Iota(di, 8);
  const auto inside_a = hn::AndNot(hn::Lt(lane_a, lo), hn::Lt(lane_a, hi));
  const auto inside_b = hn::AndNot(hn::Lt(lane_b, lo), hn::Lt(lane_b, hi));
  return {hn::IfThenElse(hn::RebindMask(d, inside_a), x.a, y.a),
          hn::IfThenElse(hn::RebindMask(d, inside_b), x.b, y.b)};
#endif
}

// The fixed tree: lanes i and i + 8, then i and i + 4, i and i + 2, i and i + 1.
HWY_INLINE float TreeSum(Vec16 v) {
#if HWY_TARGET == HWY_AVX3
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(v.a.raw), _mm512_extractf32x8_ps(v.a.raw, 1));
#else
  const __m256 eight = _mm256_add_ps(v.a.raw, v.b.raw);
#endif
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

HWY_INLINE float MaxLane(Vec16 v) {
#if HWY_TARGET == HWY_AVX3
  const __m256 eight =
      _mm256_max_ps(_mm512_castps512_ps256(v.a.raw), _mm512_extractf32x8_ps(v.a.raw, 1));
#else
  const __m256 eight = _mm256_max_ps(v.a.raw, v.b.raw);
#endif
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

constexpr float kLog2E = 1.44269504f;

// e^r for r = x - n ln 2, |r| <= ln(2)/2.
HWY_INLINE NativeFloat ExpFraction(NativeFloat n, NativeFloat x) {
  const FloatTag d;
  // ln 2 in two parts; the first has few bits, so n times it is exact.
  NativeFloat r = hn::NegMulAdd(n, hn::Set(d, 0.693145752f), x);
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860677e-6f), r);
  NativeFloat p = hn::Set(d, 1.0f / 5040);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 720));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 120));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 24));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 6));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return p;
}

// e^x to about one unit in the last place: 2^n e^r with |r| <= ln(2)/2. Overflows to infinity,
// underflows to zero; NaN stays NaN.
HWY_INLINE NativeFloat ExpRegister(NativeFloat x) {
  const FloatTag d;
  const IntTag di;
  const auto is_number = hn::Eq(x, x);
  const NativeFloat clamped = hn::Min(hn::Max(x, hn::Set(d, -110.0f)), hn::Set(d, 100.0f));
  const NativeFloat n = hn::Round(hn::Mul(clamped, hn::Set(d, kLog2E)));
  const NativeFloat p = ExpFraction(n, clamped);
  // 2^n as two factors: n reaches beyond the exponents of normal numbers.
  const auto whole = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(whole);
  const auto bias = hn::Set(di, 127);
  const NativeFloat scale_a = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const NativeFloat scale_b =
      hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(whole, half), bias)));
  return hn::IfThenElse(is_number, hn::Mul(hn::Mul(p, scale_a), scale_b), x);
}
HWY_INLINE Vec16 Exp(Vec16 x) { return WL_EACH1(ExpRegister, x); }

// e^x for x <= 0: one factor 2^n is enough, results below 2^-126 are zero. NaN stays NaN.
HWY_INLINE NativeFloat ExpNonPositiveRegister(NativeFloat x) {
  const FloatTag d;
  const IntTag di;
  const NativeFloat n = hn::Round(hn::Mul(x, hn::Set(d, kLog2E)));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  const NativeFloat value = hn::Mul(ExpFraction(n, x), hn::BitCast(d, exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), value);
}
HWY_INLINE Vec16 ExpNonPositive(Vec16 x) { return WL_EACH1(ExpNonPositiveRegister, x); }

// x / (1 + e^-y): silu for y = x, the sigmoid for x = 1.
HWY_INLINE Vec16 TimesSigmoid(Vec16 x, Vec16 y) { return Div(x, Add(Set(1.0f), Exp(Neg(y)))); }

// gelu in its tanh form: 0.5 (1 + tanh u) is the sigmoid of 2u, u = sqrt(2/pi) (x + 0.044715 x^3).
HWY_INLINE Vec16 GeluTanh(Vec16 x) {
  const Vec16 inner = Fma(Mul(Mul(x, x), x), Set(0.044715f), x);
  return TimesSigmoid(x, Mul(inner, Set(2 * 0.797884561f)));
}

// Near zero a series (the quotient would cancel), elsewhere 1 - 2 / (e^2x + 1).
HWY_INLINE NativeFloat TanhRegister(NativeFloat x) {
  const FloatTag d;
  const NativeFloat z = hn::Mul(x, x);
  NativeFloat p = hn::Set(d, -5.70498872745e-3f);
  p = hn::MulAdd(p, z, hn::Set(d, 2.06390887954e-2f));
  p = hn::MulAdd(p, z, hn::Set(d, -5.37397155531e-2f));
  p = hn::MulAdd(p, z, hn::Set(d, 1.33314422036e-1f));
  p = hn::MulAdd(p, z, hn::Set(d, -3.33332819422e-1f));
  const NativeFloat small = hn::MulAdd(hn::Mul(p, z), x, x);
  const NativeFloat e = ExpRegister(hn::Add(hn::Abs(x), hn::Abs(x)));
  const NativeFloat large =
      hn::Sub(hn::Set(d, 1.0f), hn::Div(hn::Set(d, 2.0f), hn::Add(e, hn::Set(d, 1.0f))));
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, 0.625f)), small, hn::CopySign(large, x));
}
HWY_INLINE Vec16 Tanh(Vec16 x) { return WL_EACH1(TanhRegister, x); }

// Sixteen halves, signed bytes.
HWY_INLINE Vec16 LoadHalves(const uint16_t* from) {
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  const auto* bits = reinterpret_cast<const hwy::float16_t*>(from);
#if HWY_TARGET == HWY_AVX3
  return {hn::PromoteTo(FloatTag(), hn::LoadU(half, bits))};
#else
  return {hn::PromoteTo(FloatTag(), hn::LoadU(half, bits)),
          hn::PromoteTo(FloatTag(), hn::LoadU(half, bits + 8))};
#endif
}

HWY_INLINE NativeFloat LoadBytesRegister(const int8_t* from) {
  const hn::Rebind<int8_t, IntTag> bytes;
  return hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), hn::LoadU(bytes, from)));
}
HWY_INLINE Vec16 LoadBytes(const int8_t* from) {
#if HWY_TARGET == HWY_AVX3
  return {LoadBytesRegister(from)};
#else
  return {LoadBytesRegister(from), LoadBytesRegister(from + 8)};
#endif
}

HWY_INLINE float HalfToFloat(uint16_t bits) { return _cvtsh_ss(bits); }
HWY_INLINE uint16_t FloatToHalf(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }

}  // namespace HWY_NAMESPACE
}  // namespace warpline
HWY_AFTER_NAMESPACE();

#endif  // the two targets
#endif  // the include guard of this target
