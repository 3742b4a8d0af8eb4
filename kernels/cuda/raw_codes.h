// The integer codes of raw GGUF blocks, value by value, for packing. Host and device.
#pragma once

#include <stdint.h>

#include "kernels/cuda/half_math.h"
#include "kernels/quant_decode_blocks.h"

namespace warpline::cuda {

// Codes of eight consecutive values.
struct Codes8 {
  uint32_t v[8];
};

// Nibble `i` of a block of 32 whose byte j holds values j and j + 16.
WL_HOST_DEVICE inline uint32_t SplitNibble(const uint8_t* bytes, int i) {
  return (bytes[i % 16] >> (i / 16 * 4)) & 15;
}

// RawCodes<type>: Code(block, i) is the unsigned code of value i of a block.
template <QuantType kType>
struct RawCodes;

template <>
struct RawCodes<QuantType::kQ4_0> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    return SplitNibble(block + 2, i);
  }
};

template <>
struct RawCodes<QuantType::kQ4_1> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    return SplitNibble(block + 4, i);
  }
};

template <>
struct RawCodes<QuantType::kIQ4NL> : RawCodes<QuantType::kQ4_0> {};

template <>
struct RawCodes<QuantType::kMXFP4> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    return SplitNibble(block + 1, i);
  }
};

template <>
struct RawCodes<QuantType::kNVFP4> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    return (block[4 + i / 16 * 8 + i % 8] >> (i % 16 / 8 * 4)) & 15;
  }
};

template <>
struct RawCodes<QuantType::kIQ4XS> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    return SplitNibble(block + 8 + i / 32 * 16, i % 32);
  }
};

template <>
struct RawCodes<QuantType::kQ5_0> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    return SplitNibble(block + 6, i) | ((LoadU32(block + 2) >> i) & 1) << 4;
  }
};

template <>
struct RawCodes<QuantType::kQ5_1> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    return SplitNibble(block + 8, i) | ((LoadU32(block + 4) >> i) & 1) << 4;
  }
};

// Signed bytes, 128 added.
template <>
struct RawCodes<QuantType::kQ8_0> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) { return block[2 + i] ^ 128; }
};

template <>
struct RawCodes<QuantType::kQ4K> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    return (block[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4)) & 15;
  }
};

template <>
struct RawCodes<QuantType::kQ5K> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    const uint32_t low = (block[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4)) & 15;
    return low | ((block[16 + i % 32] >> (i / 32)) & 1) << 4;
  }
};

template <>
struct RawCodes<QuantType::kQ6K> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    const int half = i / 128;
    const int quarter = i % 128 / 32;
    const uint32_t low = (block[64 * half + 32 * (quarter % 2) + i % 32] >> (quarter / 2 * 4)) & 15;
    return low | ((block[128 + 32 * half + i % 32] >> (2 * quarter)) & 3) << 4;
  }
};

template <>
struct RawCodes<QuantType::kQ2K> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    return (block[16 + 32 * (i / 128) + i % 32] >> (i % 128 / 32 * 2)) & 3;
  }
};

template <>
struct RawCodes<QuantType::kQ3K> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    const uint32_t low = (block[32 + 32 * (i / 128) + i % 32] >> (i % 128 / 32 * 2)) & 3;
    return low | ((block[i % 32] >> (i / 32)) & 1) << 2;
  }
};

template <>
struct RawCodes<QuantType::kQ1_0> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    return (block[2 + i / 8] >> (i % 8)) & 1;
  }
};

template <>
struct RawCodes<QuantType::kQ2_0> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    return (block[2 + i / 4] >> (i % 4 * 2)) & 3;
  }
};

template <>
struct RawCodes<QuantType::kTQ2_0> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    return (block[32 * (i / 128) + i % 32] >> (i % 128 / 32 * 2)) & 3;
  }
};

// Base-3 digits, see BlockTQ1_0: 32 bytes with five digits each, 16 with five, 4 with four.
template <>
struct RawCodes<QuantType::kTQ1_0> {
  WL_HOST_DEVICE static uint32_t Code(const uint8_t* block, int i) {
    if (i < 160) return Digit(block[i % 32], i / 32);
    if (i < 240) return Digit(block[32 + (i - 160) % 16], (i - 160) / 16);
    return Digit(block[48 + (i - 240) % 4], (i - 240) / 4);
  }

 private:
  WL_HOST_DEVICE static uint32_t Digit(uint32_t byte, int n) {
    for (; n > 0; --n) byte = (byte * 3) & 255;
    return (byte * 3) >> 8;
  }
};

// The codes of values `first` to `first` + 7 of a block.
template <QuantType kType>
WL_HOST_DEVICE Codes8 ReadCodes(const uint8_t* block, int first) {
  Codes8 codes;
  WL_UNROLL
  for (int i = 0; i < 8; ++i) codes.v[i] = RawCodes<kType>::Code(block, first + i);
  return codes;
}

// Fields of `bits` bits (1, 2 or 4), one for each code: values 2 * p and 2 * p + 1 at bits bits * p
// of the low and the high 16 bits. Takes bits `from` to `from` + bits - 1 of each code.
WL_HOST_DEVICE inline uint32_t PackFields(const Codes8& codes, int from, int bits) {
  uint32_t word = 0;
  WL_UNROLL
  for (int i = 0; i < 8; ++i) {
    const uint32_t field = (codes.v[i] >> from) & ((1u << bits) - 1);
    word |= field << (16 * (i % 2) + bits * (i / 2));
  }
  return word;
}

// The low three bits of eight nibbles as two selectors of four for Permute, low 16 bits first; the
// nibbles' top bits at bits 8 * i + 7 for values 0 to 3 and 8 * i + 3 for values 4 to 7.
WL_HOST_DEVICE inline uint32_t PackSelectors(const Codes8& codes) {
  uint32_t word = 0;
  WL_UNROLL
  for (int i = 0; i < 8; ++i) {
    word |= (codes.v[i] & 7) << (4 * i);
    word |= (codes.v[i] >> 3) << (i < 4 ? 8 * i + 7 : 8 * (i - 4) + 3);
  }
  return word;
}

}  // namespace warpline::cuda
