// What the block decoders share: how to read little-endian fields and half floats, and the tables
// they need. Plain functions without library calls, so that a CUDA compiler can build them for host
// and device.
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define WL_HOST_DEVICE __host__ __device__
#else
#define WL_HOST_DEVICE
#endif

namespace warpline {

// Borrowed tables; pointers, because device code reads its own copies. Entries are vectors of small
// integers, one byte each, value j in byte j counted from the low end.
struct QuantGrids {
  const uint64_t* iq2_xxs = nullptr;  // [256], values 8, 25, 43
  const uint64_t* iq2_xs = nullptr;   // [512], as above
  const uint64_t* iq2_s = nullptr;    // [1024], as above
  const uint32_t* iq3_xxs = nullptr;  // [256], values 4 to 62
  const uint32_t* iq3_s = nullptr;    // [512], odd values 1 to 15
  const uint64_t* iq1 = nullptr;      // [2048], signed bytes -1, 0, 1; IQ1_S and IQ1_M
  const int8_t* iq4_codes = nullptr;  // [16], levels of IQ4_NL and IQ4_XS
  const int8_t* fp4_codes = nullptr;  // [16], twice the E2M1 values; MXFP4 and NVFP4
};

WL_HOST_DEVICE inline float FloatFromBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

WL_HOST_DEVICE inline uint32_t LoadU16(const uint8_t* bytes) {
  return static_cast<uint32_t>(bytes[0]) | static_cast<uint32_t>(bytes[1]) << 8;
}

WL_HOST_DEVICE inline uint32_t LoadU32(const uint8_t* bytes) {
  return LoadU16(bytes) | LoadU16(bytes + 2) << 16;
}

// Exact, subnormals included.
WL_HOST_DEVICE inline float FloatFromHalf(uint32_t half) {
  const uint32_t sign = (half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 31;
  const uint32_t fraction = half & 1023;
  if (exponent == 31) return FloatFromBits(sign | 0x7F800000 | fraction << 13);
  if (exponent != 0) return FloatFromBits(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

WL_HOST_DEVICE inline float LoadHalf(const uint8_t* bytes) { return FloatFromHalf(LoadU16(bytes)); }

WL_HOST_DEVICE inline int Low4(uint32_t byte) { return static_cast<int>(byte & 15); }
WL_HOST_DEVICE inline int High4(uint32_t byte) { return static_cast<int>(byte >> 4); }

// Eight sign bits from a 7-bit index: bit 7 makes the count of set bits even.
WL_HOST_DEVICE inline uint32_t SignMaskFrom7(uint32_t index) {
  uint32_t parity = index ^ (index >> 4);
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return index | (parity & 1) << 7;
}

// Scale of MXFP4: 2^(e-128), half of the E8M0 value because the codes are doubled; subnormal for e
// = 0 and 1.
WL_HOST_DEVICE inline float Mxfp4Scale(uint32_t e) {
  return FloatFromBits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

// Scale of NVFP4: half of an unsigned E4M3 number; bit 7 is ignored, except that 0x7F alone means
// 0.
WL_HOST_DEVICE inline float Nvfp4Scale(uint32_t byte) {
  if (byte == 0x7F) return 0;
  const uint32_t exponent = (byte >> 3) & 15;
  const uint32_t fraction = byte & 7;
  if (exponent == 0) return static_cast<float>(fraction) * 0x1p-10f;
  return FloatFromBits((exponent + 119) << 23 | fraction << 20);
}

// The 6-bit scales and minima of Q4_K and Q5_K, group 0 to 7, from their 12 packed bytes.
struct ScaleAndMin {
  int scale;
  int min;
};
WL_HOST_DEVICE inline ScaleAndMin LoadScaleAndMin(const uint8_t* packed, int group) {
  if (group < 4) return {packed[group] & 63, packed[group + 4] & 63};
  return {Low4(packed[group + 4]) | (packed[group - 4] >> 6) << 4,
          High4(packed[group + 4]) | (packed[group] >> 6) << 4};
}

}  // namespace warpline
