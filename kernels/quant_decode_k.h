// Scalar decoders of the K formats: 256 values in groups with small integer scales. Same shape as
// quant_decode_simple.h.
#pragma once

#include "kernels/quant_decode_common.h"

namespace warpline {

struct BlockQ2K {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 84;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    const uint8_t* const qs = block + 16;
    const float d = LoadHalf(block + 80);
    const float dmin = LoadHalf(block + 82);
    for (int i = 0; i < kValues; ++i) {
      const int q = (qs[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
      const uint8_t scales = block[i / 16];
      const float scale = d * static_cast<float>(Low4(scales));
      const float min = dmin * static_cast<float>(High4(scales));
      out[i] = scale * static_cast<float>(q) - min;
    }
  }
};

// The sixteen 6-bit scales of Q3_K from their 12 packed bytes, 32 subtracted.
WL_HOST_DEVICE inline int LoadQ3KScale(const uint8_t* packed, int group) {
  const int low = group < 8 ? Low4(packed[group]) : High4(packed[group - 8]);
  const int high = (packed[8 + group % 4] >> (2 * (group / 4))) & 3;
  return (low | high << 4) - 32;
}

struct BlockQ3K {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 110;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    const uint8_t* const hmask = block;
    const uint8_t* const qs = block + 32;
    const uint8_t* const scales = block + 96;
    const float d = LoadHalf(block + 108);
    for (int i = 0; i < kValues; ++i) {
      const int low = (qs[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
      const int bit = (hmask[i % 32] >> (i / 32)) & 1;
      const float scale = d * static_cast<float>(LoadQ3KScale(scales, i / 16));
      out[i] = scale * static_cast<float>(low - (bit != 0 ? 0 : 4));
    }
  }
};

struct BlockQ4K {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 144;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    const float d = LoadHalf(block);
    const float dmin = LoadHalf(block + 2);
    const uint8_t* const qs = block + 16;
    for (int group = 0; group < 8; ++group) {
      const ScaleAndMin packed = LoadScaleAndMin(block + 4, group);
      const float scale = d * static_cast<float>(packed.scale);
      const float min = dmin * static_cast<float>(packed.min);
      for (int j = 0; j < 32; ++j) {
        const int q = (qs[32 * (group / 2) + j] >> (4 * (group % 2))) & 15;
        out[32 * group + j] = scale * static_cast<float>(q) - min;
      }
    }
  }
};

struct BlockQ5K {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 176;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    const float d = LoadHalf(block);
    const float dmin = LoadHalf(block + 2);
    const uint8_t* const qh = block + 16;
    const uint8_t* const qs = block + 48;
    for (int group = 0; group < 8; ++group) {
      const ScaleAndMin packed = LoadScaleAndMin(block + 4, group);
      const float scale = d * static_cast<float>(packed.scale);
      const float min = dmin * static_cast<float>(packed.min);
      for (int j = 0; j < 32; ++j) {
        const int low = (qs[32 * (group / 2) + j] >> (4 * (group % 2))) & 15;
        const int q = low | ((qh[j] >> group) & 1) << 4;
        out[32 * group + j] = scale * static_cast<float>(q) - min;
      }
    }
  }
};

struct BlockQ6K {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 210;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids&, float* out) {
    const float d = LoadHalf(block + 208);
    for (int i = 0; i < kValues; ++i) {
      const int half = i / 128;
      const int quarter = i % 128 / 32;  // low nibbles for 0 and 1, high ones for 2 and 3
      const int l = i % 32;
      const int low = (block[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2))) & 15;
      const int high = (block[128 + 32 * half + l] >> (2 * quarter)) & 3;
      const int scale = static_cast<int8_t>(block[192 + i / 16]);
      out[i] = d * static_cast<float>(scale) * static_cast<float>((low | high << 4) - 32);
    }
  }
};

}  // namespace warpline
