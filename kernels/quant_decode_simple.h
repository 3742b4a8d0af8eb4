// Scalar decoders of the formats with one scale for each short block, and of plain floats. Each
// struct has kValues, kBytes and Decode(block, grids, out[kValues]). Every value is rounded at most
// once.
#pragma once

#include "kernels/quant_decode_common.h"

namespace warpline {

struct BlockF32 {
  static constexpr int kValues = 1;
  static constexpr int kBytes = 4;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    out[0] = FloatFromBits(LoadU32(block));
  }
};

struct BlockF16 {
  static constexpr int kValues = 1;
  static constexpr int kBytes = 2;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    out[0] = LoadHalf(block);
  }
};

struct BlockBF16 {
  static constexpr int kValues = 1;
  static constexpr int kBytes = 2;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    out[0] = FloatFromBits(LoadU16(block) << 16);
  }
};

struct BlockQ4_0 {
  static constexpr int kValues = 32;
  static constexpr int kBytes = 18;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    const float d = LoadHalf(block);
    const uint8_t* const qs = block + 2;
    for (int j = 0; j < 16; ++j) {
      out[j] = static_cast<float>(Low4(qs[j]) - 8) * d;
      out[j + 16] = static_cast<float>(High4(qs[j]) - 8) * d;
    }
  }
};

struct BlockQ4_1 {
  static constexpr int kValues = 32;
  static constexpr int kBytes = 20;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    const float d = LoadHalf(block);
    const float m = LoadHalf(block + 2);
    const uint8_t* const qs = block + 4;
    for (int j = 0; j < 16; ++j) {
      out[j] = static_cast<float>(Low4(qs[j])) * d + m;
      out[j + 16] = static_cast<float>(High4(qs[j])) * d + m;
    }
  }
};

struct BlockQ5_0 {
  static constexpr int kValues = 32;
  static constexpr int kBytes = 22;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    const float d = LoadHalf(block);
    const uint32_t qh = LoadU32(block + 2);
    const uint8_t* const qs = block + 6;
    for (int j = 0; j < 16; ++j) {
      const int low = Low4(qs[j]) | static_cast<int>((qh >> j) & 1) << 4;
      const int high = High4(qs[j]) | static_cast<int>((qh >> (j + 16)) & 1) << 4;
      out[j] = static_cast<float>(low - 16) * d;
      out[j + 16] = static_cast<float>(high - 16) * d;
    }
  }
};

struct BlockQ5_1 {
  static constexpr int kValues = 32;
  static constexpr int kBytes = 24;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    const float d = LoadHalf(block);
    const float m = LoadHalf(block + 2);
    const uint32_t qh = LoadU32(block + 4);
    const uint8_t* const qs = block + 8;
    for (int j = 0; j < 16; ++j) {
      const int low = Low4(qs[j]) | static_cast<int>((qh >> j) & 1) << 4;
      const int high = High4(qs[j]) | static_cast<int>((qh >> (j + 16)) & 1) << 4;
      out[j] = static_cast<float>(low) * d + m;
      out[j + 16] = static_cast<float>(high) * d + m;
    }
  }
};

struct BlockQ8_0 {
  static constexpr int kValues = 32;
  static constexpr int kBytes = 34;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    const float d = LoadHalf(block);
    for (int j = 0; j < 32; ++j) {
      out[j] = static_cast<float>(static_cast<int8_t>(block[2 + j])) * d;
    }
  }
};

struct BlockQ1_0 {
  static constexpr int kValues = 128;
  static constexpr int kBytes = 18;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    const float d = LoadHalf(block);
    for (int j = 0; j < kValues; ++j) {
      out[j] = ((block[2 + j / 8] >> (j % 8)) & 1) != 0 ? d : -d;
    }
  }
};

struct BlockQ2_0 {
  static constexpr int kValues = 64;
  static constexpr int kBytes = 18;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    const float d = LoadHalf(block);
    for (int j = 0; j < kValues; ++j) {
      const int q = (block[2 + j / 4] >> (2 * (j % 4))) & 3;
      out[j] = static_cast<float>(q - 1) * d;
    }
  }
};

struct BlockMXFP4 {
  static constexpr int kValues = 32;
  static constexpr int kBytes = 17;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids& grids, float* out) {
    const float scale = Mxfp4Scale(block[0]);
    const uint8_t* const qs = block + 1;
    for (int j = 0; j < 16; ++j) {
      out[j] = static_cast<float>(grids.fp4_codes[Low4(qs[j])]) * scale;
      out[j + 16] = static_cast<float>(grids.fp4_codes[High4(qs[j])]) * scale;
    }
  }
};

struct BlockNVFP4 {
  static constexpr int kValues = 64;
  static constexpr int kBytes = 36;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids& grids, float* out) {
    for (int s = 0; s < 4; ++s) {
      const float scale = Nvfp4Scale(block[s]);
      const uint8_t* const qs = block + 4 + 8 * s;
      for (int j = 0; j < 8; ++j) {
        out[16 * s + j] = static_cast<float>(grids.fp4_codes[Low4(qs[j])]) * scale;
        out[16 * s + j + 8] = static_cast<float>(grids.fp4_codes[High4(qs[j])]) * scale;
      }
    }
  }
};

struct BlockTQ2_0 {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 66;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    const float d = LoadHalf(block + 64);
    for (int i = 0; i < kValues; ++i) {
      const int q = (block[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
      out[i] = static_cast<float>(q - 1) * d;
    }
  }
};

// Base-3 digits, five to a byte (four in the last four bytes): the leading digit of byte * 3^n is
// the fraction's carry.
struct BlockTQ1_0 {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 54;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    const float d = LoadHalf(block + 52);
    out = DecodeDigits(block, 32, 5, d, out);
    out = DecodeDigits(block + 32, 16, 5, d, out);
    DecodeDigits(block + 48, 4, 4, d, out);
  }

 private:
  WL_HOST_DEVICE static float* DecodeDigits(const uint8_t* bytes, int byte_count, int digit_count,
                                            float d, float* out) {
    uint32_t power = 1;
    for (int n = 0; n < digit_count; ++n, power *= 3) {
      for (int b = 0; b < byte_count; ++b) {
        const uint32_t rest = (bytes[b] * power) & 255;
        *out++ = static_cast<float>(static_cast<int>((rest * 3) >> 8) - 1) * d;
      }
    }
    return out;
  }
};

}  // namespace warpline
