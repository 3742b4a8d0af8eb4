// Packed half arithmetic and bit moves that decoders are written in, for host and device. A
// uint32_t holds two halves, the first one in the low 16 bits. On the device these are single
// instructions; the host twins give the same bits (NaNs may differ in payload), so that a test
// without a GPU proves what a kernel computes. All rounding is to nearest, ties to even, with
// subnormal numbers.
#pragma once

#include <stdint.h>
#include <string.h>

#include <cmath>

#include "kernels/quant_decode_common.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define WL_INLINE __host__ __device__ __forceinline__
#else
#define WL_INLINE inline
#endif
// Before a loop of constant length whose index picks registers.
#ifdef __CUDA_ARCH__
#define WL_UNROLL _Pragma("unroll")
#else
#define WL_UNROLL
#endif

namespace warpline::cuda {

// `value` as a half; beyond the largest half, infinity. Exact for any double, so for any float too.
WL_HOST_DEVICE inline uint32_t HalfFromDouble(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = static_cast<uint32_t>(bits >> 48) & 0x8000;
  const int exponent = static_cast<int>((bits >> 52) & 2047) - 1023;
  const uint64_t fraction = bits & 0xFFFFFFFFFFFFFull;
  if (exponent == 1024) return sign | (fraction != 0 ? 0x7E00 : 0x7C00);
  if (exponent >= 16) return sign | 0x7C00;
  if (exponent < -25) return sign;
  // Of the 53 significant bits, those below the half's last place are dropped.
  const int dropped = exponent >= -14 ? 42 : 42 + (-14 - exponent);
  const uint64_t significand = fraction | 1ull << 52;
  uint64_t kept = significand >> dropped;
  const uint64_t rest = significand & ((1ull << dropped) - 1);
  const uint64_t tie = 1ull << (dropped - 1);
  if (rest > tie || (rest == tie && (kept & 1) != 0)) ++kept;
  // A carry out of the fraction lands in the exponent, where it belongs.
  if (exponent >= -14) kept += static_cast<uint64_t>(exponent + 14) << 10;
  return sign | static_cast<uint32_t>(kept);
}

WL_INLINE uint32_t HalfFromFloat(float value) {
#ifdef __CUDA_ARCH__
  return __half_as_ushort(__float2half_rn(value));
#else
  return HalfFromDouble(static_cast<double>(value));
#endif
}

// N consecutive 32-bit words of one lane.
template <int kCount>
struct Words {
  uint32_t w[kCount];
};

WL_INLINE uint32_t PackHalves(uint32_t low, uint32_t high) { return low | high << 16; }

#ifndef __CUDA_ARCH__
namespace host {

// a * b + c for halves, rounded once.
inline uint32_t Fma(uint32_t a, uint32_t b, uint32_t c) {
  const double product = static_cast<double>(FloatFromHalf(a)) * FloatFromHalf(b);  // exact
  const double addend = FloatFromHalf(c);
  double sum = product + addend;
  const double back = sum - product;
  const double error = (product - (sum - back)) + (addend - back);
  if (error != 0 && std::isfinite(sum)) {
    // Rounding to odd keeps the second rounding, to half, from seeing a tie that is none.
    uint64_t bits;
    memcpy(&bits, &sum, sizeof(bits));
    if ((bits & 1) == 0) sum = std::nextafter(sum, error > 0 ? HUGE_VAL : -HUGE_VAL);
  }
  return HalfFromDouble(sum);
}

}  // namespace host
#endif

// Two products, two sums, two fused multiply-adds; each rounded once.
WL_INLINE uint32_t Mul2(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  uint32_t result;
  asm("{mul.rn.f16x2 %0, %1, %2;}" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  return PackHalves(HalfFromFloat(FloatFromHalf(a & 0xFFFF) * FloatFromHalf(b & 0xFFFF)),
                    HalfFromFloat(FloatFromHalf(a >> 16) * FloatFromHalf(b >> 16)));
#endif
}

WL_INLINE uint32_t Add2(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  uint32_t result;
  asm("{add.rn.f16x2 %0, %1, %2;}" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  // A double holds the sum of any two halves exactly.
  return PackHalves(
      HalfFromDouble(static_cast<double>(FloatFromHalf(a & 0xFFFF)) + FloatFromHalf(b & 0xFFFF)),
      HalfFromDouble(static_cast<double>(FloatFromHalf(a >> 16)) + FloatFromHalf(b >> 16)));
#endif
}

WL_INLINE uint32_t Negate2(uint32_t pair) {
#ifdef __CUDA_ARCH__
  uint32_t result;
  asm("{neg.f16x2 %0, %1;}" : "=r"(result) : "r"(pair));
  return result;
#else
  return pair ^ 0x80008000;
#endif
}

WL_INLINE uint32_t Fma2(uint32_t a, uint32_t b, uint32_t c) {
#ifdef __CUDA_ARCH__
  uint32_t result;
  asm("{fma.rn.f16x2 %0, %1, %2, %3;}" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
#else
  return PackHalves(host::Fma(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF),
                    host::Fma(a >> 16, b >> 16, c >> 16));
#endif
}

// The low or the high half, exactly.
WL_INLINE float LowFloat(uint32_t pair) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair)));
#else
  return FloatFromHalf(pair & 0xFFFF);
#endif
}

WL_INLINE float HighFloat(uint32_t pair) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16)));
#else
  return FloatFromHalf(pair >> 16);
#endif
}

WL_INLINE uint32_t PackFloats(float low, float high) {
#ifdef __CUDA_ARCH__
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
#else
  return PackHalves(HalfFromFloat(low), HalfFromFloat(high));
#endif
}

// Single-precision product and multiply-add that a compiler neither splits nor fuses.
WL_INLINE float MulFloat(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

WL_INLINE float FmaFloat(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

// Byte i of the result is byte (selector >> 4 * i) & 7 of high:low; with bit 3 of that nibble set,
// the byte's sign bit eight times. Bits of the selector above 15 do not matter.
WL_INLINE uint32_t Permute(uint32_t low, uint32_t high, uint32_t selector) {
#ifdef __CUDA_ARCH__
  uint32_t result;
  asm("{prmt.b32 %0, %1, %2, %3;}" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
  return result;
#else
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = (selector >> (4 * i)) & 15;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (nibble & 7))) & 255;
    if ((nibble & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
#endif
}

// (word & mask) | bits in one instruction; written out, the compiler makes two of constants.
WL_INLINE uint32_t AndOr(uint32_t word, uint32_t mask, uint32_t bits) {
#ifdef __CUDA_ARCH__
  uint32_t result;
  asm("{lop3.b32 %0, %1, %2, %3, 0xEA;}" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
#else
  return (word & mask) | bits;
#endif
}

// Low 32 bits of high:low shifted right by `count`, 0 to 31.
WL_INLINE uint32_t FunnelShiftRight(uint32_t low, uint32_t high, int count) {
#ifdef __CUDA_ARCH__
  return __funnelshift_r(low, high, count);
#else
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> count);
#endif
}

// `word` shifted right by `count`, to the left where that is negative.
WL_INLINE constexpr uint32_t Shift(uint32_t word, int count) {
  return count >= 0 ? word >> count : word << -count;
}

// The low or the high half of a pair, twice. Written as moves of halves, which the compiler folds
// into the operand of the instruction that follows.
WL_INLINE uint32_t BroadcastLow(uint32_t pair) {
#ifdef __CUDA_ARCH__
  uint32_t result;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low};}"
      : "=r"(result)
      : "r"(pair));
  return result;
#else
  return Permute(pair, pair, 0x1010);
#endif
}

WL_INLINE uint32_t BroadcastHigh(uint32_t pair) {
#ifdef __CUDA_ARCH__
  uint32_t result;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high};}"
      : "=r"(result)
      : "r"(pair));
  return result;
#else
  return Permute(pair, pair, 0x3232);
#endif
}

// A constant twice; `half` is its bit pattern.
WL_INLINE constexpr uint32_t Twice(uint32_t half) { return half | half << 16; }

// The half that is `value`, an integer of at most 2048 in size, for constants.
WL_HOST_DEVICE constexpr uint32_t HalfOfInteger(int value) {
  if (value == 0) return 0;
  uint32_t magnitude = static_cast<uint32_t>(value < 0 ? -value : value);
  uint32_t exponent = 25;  // of magnitudes 1024 to 2047
  while (magnitude >= 2048) magnitude >>= 1, ++exponent;
  while (magnitude < 1024) magnitude <<= 1, --exponent;
  return (value < 0 ? 0x8000u : 0) | exponent << 10 | (magnitude & 1023);
}

}  // namespace warpline::cuda
