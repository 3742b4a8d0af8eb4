// Scalar decoders of the IQ formats: codebooks of single values or grids of small vectors with
// signs. Same shape as quant_decode_simple.h.
#pragma once

#include "kernels/quant_decode_common.h"

namespace warpline {

// Eight values of a grid entry; bit j of `signs` negates value j.
WL_HOST_DEVICE inline void DecodeSigned8(uint64_t entry, uint32_t signs, float scale, float* out) {
  for (int j = 0; j < 8; ++j) {
    const float value = static_cast<float>(static_cast<int>((entry >> (8 * j)) & 255)) * scale;
    out[j] = ((signs >> j) & 1) != 0 ? -value : value;
  }
}

struct BlockIQ2XXS {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 66;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids& grids, float* out) {
    const float d = LoadHalf(block);
    for (int ib = 0; ib < 8; ++ib) {
      const uint8_t* const indices = block + 2 + 8 * ib;
      const uint32_t signs = LoadU32(indices + 4);
      const float scale = d * (0.5f + static_cast<float>(signs >> 28)) * 0.25f;
      for (int l = 0; l < 4; ++l) {
        DecodeSigned8(grids.iq2_xxs[indices[l]], SignMaskFrom7((signs >> (7 * l)) & 127), scale,
                      out + 32 * ib + 8 * l);
      }
    }
  }
};

struct BlockIQ2XS {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 74;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids& grids, float* out) {
    const float d = LoadHalf(block);
    for (int i = 0; i < 32; ++i) {
      const uint32_t word = LoadU16(block + 2 + 2 * i);
      const int nibble = (block[66 + i / 4] >> (4 * (i % 4 / 2))) & 15;
      const float scale = d * (0.5f + static_cast<float>(nibble)) * 0.25f;
      DecodeSigned8(grids.iq2_xs[word & 511], SignMaskFrom7(word >> 9), scale, out + 8 * i);
    }
  }
};

struct BlockIQ2S {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 82;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids& grids, float* out) {
    const float d = LoadHalf(block);
    const uint8_t* const qs = block + 2;
    const uint8_t* const signs = block + 34;
    const uint8_t* const qh = block + 66;
    const uint8_t* const scales = block + 74;
    for (int i = 0; i < 32; ++i) {
      const int index = qs[i] | ((qh[i / 4] >> (2 * (i % 4))) & 3) << 8;
      const int nibble = (scales[i / 4] >> (4 * (i % 4 / 2))) & 15;
      const float scale = d * (0.5f + static_cast<float>(nibble)) * 0.25f;
      DecodeSigned8(grids.iq2_s[index], signs[i], scale, out + 8 * i);
    }
  }
};

struct BlockIQ3XXS {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 98;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids& grids, float* out) {
    const float d = LoadHalf(block);
    for (int ib = 0; ib < 8; ++ib) {
      const uint8_t* const qs = block + 2 + 8 * ib;
      const uint32_t signs = LoadU32(block + 66 + 4 * ib);
      const float scale = d * (0.5f + static_cast<float>(signs >> 28)) * 0.5f;
      for (int l = 0; l < 4; ++l) {
        const uint64_t first = grids.iq3_xxs[qs[2 * l]];
        const uint64_t second = grids.iq3_xxs[qs[2 * l + 1]];
        DecodeSigned8(first | second << 32, SignMaskFrom7((signs >> (7 * l)) & 127), scale,
                      out + 32 * ib + 8 * l);
      }
    }
  }
};

struct BlockIQ3S {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 110;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids& grids, float* out) {
    const float d = LoadHalf(block);
    const uint8_t* const signs = block + 74;
    const uint8_t* const scales = block + 106;
    for (int ib = 0; ib < 8; ++ib) {
      const uint8_t* const qs = block + 2 + 8 * ib;
      const uint32_t qh = block[66 + ib];
      const int nibble = (scales[ib / 2] >> (4 * (ib % 2))) & 15;
      const float scale = d * static_cast<float>(1 + 2 * nibble);
      for (int l = 0; l < 4; ++l) {
        const uint64_t first = grids.iq3_s[qs[2 * l] | ((qh >> (2 * l)) & 1) << 8];
        const uint64_t second = grids.iq3_s[qs[2 * l + 1] | ((qh >> (2 * l + 1)) & 1) << 8];
        DecodeSigned8(first | second << 32, signs[4 * ib + l], scale, out + 32 * ib + 8 * l);
      }
    }
  }
};

// Eight values of an IQ1 entry: scale * (-1, 0 or 1, plus delta).
WL_HOST_DEVICE inline void DecodeShifted8(uint64_t entry, float delta, float scale, float* out) {
  for (int j = 0; j < 8; ++j) {
    out[j] = scale * (static_cast<float>(static_cast<int8_t>((entry >> (8 * j)) & 255)) + delta);
  }
}

struct BlockIQ1S {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 50;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids& grids, float* out) {
    const float d = LoadHalf(block);
    for (int i = 0; i < 32; ++i) {
      const uint32_t qh = LoadU16(block + 34 + 2 * (i / 4));
      const uint32_t index = block[2 + i] | ((qh >> (3 * (i % 4))) & 7) << 8;
      const float scale = d * static_cast<float>(2 * ((qh >> 12) & 7) + 1);
      DecodeShifted8(grids.iq1[index], (qh >> 15) != 0 ? -0.125f : 0.125f, scale, out + 8 * i);
    }
  }
};

// IQ1_M keeps the half float d in the top nibbles of its four scale words.
WL_HOST_DEVICE inline float LoadIQ1MScale(const uint8_t* scales) {
  return FloatFromHalf(LoadU16(scales) >> 12 | ((LoadU16(scales + 2) >> 8) & 0x00F0) |
                       ((LoadU16(scales + 4) >> 4) & 0x0F00) | (LoadU16(scales + 6) & 0xF000));
}

struct BlockIQ1M {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 56;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids& grids, float* out) {
    const uint8_t* const qh = block + 32;
    const uint8_t* const scales = block + 48;
    const float d = LoadIQ1MScale(scales);
    for (int i = 0; i < 32; ++i) {
      const int nibble = (qh[i / 2] >> (4 * (i % 2))) & 15;
      const int index = block[i] | (nibble & 7) << 8;
      const uint32_t step = (LoadU16(scales + 2 * (i / 8)) >> (3 * (i % 8 / 2))) & 7;
      DecodeShifted8(grids.iq1[index], (nibble & 8) != 0 ? -0.125f : 0.125f,
                     d * static_cast<float>(2 * step + 1), out + 8 * i);
    }
  }
};

struct BlockIQ4NL {
  static constexpr int kValues = 32;
  static constexpr int kBytes = 18;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids& grids, float* out) {
    const float d = LoadHalf(block);
    const uint8_t* const qs = block + 2;
    for (int j = 0; j < 16; ++j) {
      out[j] = static_cast<float>(grids.iq4_codes[Low4(qs[j])]) * d;
      out[j + 16] = static_cast<float>(grids.iq4_codes[High4(qs[j])]) * d;
    }
  }
};

// The 6-bit scale of group `ib` of an IQ4_XS block, 32 subtracted.
WL_HOST_DEVICE inline int LoadIQ4XSScale(const uint8_t* block, int ib) {
  const int low = (block[4 + ib / 2] >> (4 * (ib % 2))) & 15;
  const int high = static_cast<int>(LoadU16(block + 2) >> (2 * ib)) & 3;
  return (low | high << 4) - 32;
}

struct BlockIQ4XS {
  static constexpr int kValues = 256;
  static constexpr int kBytes = 136;
  WL_HOST_DEVICE static void Decode(const uint8_t* block, const QuantGrids& grids, float* out) {
    const float d = LoadHalf(block);
    for (int ib = 0; ib < 8; ++ib) {
      const float scale = d * static_cast<float>(LoadIQ4XSScale(block, ib));
      const uint8_t* const qs = block + 8 + 16 * ib;
      for (int j = 0; j < 16; ++j) {
        out[32 * ib + j] = static_cast<float>(grids.iq4_codes[Low4(qs[j])]) * scale;
        out[32 * ib + j + 16] = static_cast<float>(grids.iq4_codes[High4(qs[j])]) * scale;
      }
    }
  }
};

}  // namespace warpline
