// How each tensor type's packed weights become MMA fragments. Host and device code; a test on the
// CPU proves every bit. packed_layout.h says which lane owns what.
//
//   template <> struct WeightFormat<QuantType::kX> {
//     static constexpr PackedShape kShape;
//     static constexpr int kTableBytes;   // of the shared-memory table: 0 or a multiple of 16
//     struct Slice;                       // a lane's registers for one piece
//     static Slice Load(const uint8_t* piece, const uint8_t* super, int lane);
//     static void Decode(const Slice&, const uint8_t* table, int group,
//                        uint32_t (&step0)[4], uint32_t (&step1)[4]);
//     static void MakeTable(const QuantGrids&, uint8_t* table);  // host
//     static void PackLane(const RawRows&, int slice, int lane, uint8_t* piece, uint8_t* super);
//   };
//
// Load: `piece` and `super` lie in global memory, 16-byte aligned; `super` belongs to the pair of
// slices and is not read where super_bytes is 0. Decode: `table` lies in shared memory, `group` (0
// to groups - 1) is a constant after unrolling. Fragment register 2 * hi + h holds two halves of
// row g + 8 * h. A decoded half is the float of quant_decode_*.h, times 2^shift for the types of
// HasWeightShift, rounded once to half (if that float is infinite, any half); a row or k beyond the
// matrix decodes to 0 (perhaps -0). PackLane writes all bytes that belong to one lane of one piece:
// the 32 lanes together write the piece, and those of an even slice the super bytes of the pair
// too.
#pragma once

#include <stdint.h>

#include "kernels/cuda/half_math.h"
#include "kernels/cuda/packed_fields.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/raw_codes.h"
#include "kernels/quant_decode_blocks.h"
#include "model/quant.h"

namespace warpline::cuda {

template <QuantType kType>
struct WeightFormat;

// A lane's two rows of raw GGUF blocks.
struct RawRows {
  const uint8_t* rows[2] = {nullptr, nullptr};  // rows g and g + 8; null beyond the matrix
  int64_t k = 0;                                // values of a row, a multiple of the type's block
  int shift = 0;                                // power of two of HasWeightShift types, else 0
};

// Whether decoded weights are scaled by a per-tensor power of two, because the type's numbers reach
// beyond those of a half.
WL_HOST_DEVICE constexpr bool HasWeightShift(QuantType type) {
  return type == QuantType::kF32 || type == QuantType::kBF16 || type == QuantType::kMXFP4;
}

// The shift that brings `max_abs`, a tensor's largest |value|, into [2^11, 2^12); 0 for 0. More
// would lose the smallest MXFP4 scales, less the smallest floats.
WL_HOST_DEVICE inline int WeightShift(float max_abs) {
  uint32_t bits;
  memcpy(&bits, &max_abs, sizeof(bits));
  if (bits == 0) return 0;
  int exponent = static_cast<int>(bits >> 23) - 127;
  if (exponent == -127) {
    for (exponent = -126; (bits & 0x800000) == 0; bits <<= 1) --exponent;
  }
  return 11 - exponent;
}

// A lane's words from global memory that no kernel writes meanwhile; aligned to their size, at most
// 16 bytes a load.
template <int kCount>
WL_INLINE Words<kCount> LoadWords(const uint8_t* from) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4);
  Words<kCount> words;
#ifdef __CUDA_ARCH__
  if constexpr (kCount == 1) {
    words.w[0] = __ldg(reinterpret_cast<const uint32_t*>(from));
  } else if constexpr (kCount == 2) {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(from));
    words.w[0] = v.x;
    words.w[1] = v.y;
  } else {
    const uint4 v = __ldg(reinterpret_cast<const uint4*>(from));
    words.w[0] = v.x;
    words.w[1] = v.y;
    words.w[2] = v.z;
    words.w[3] = v.w;
  }
#else
  memcpy(words.w, from, sizeof(words.w));
#endif
  return words;
}

// One or two bytes of a lane out of a plane of `kBytes` a lane; 0 for none.
template <int kBytes>
WL_INLINE uint32_t LoadSmall(const uint8_t* plane, int lane) {
  static_assert(kBytes >= 0 && kBytes <= 2);
  if constexpr (kBytes == 0) return 0;
#ifdef __CUDA_ARCH__
  if constexpr (kBytes == 1) return __ldg(plane + lane);
  return __ldg(reinterpret_cast<const unsigned short*>(plane) + lane);
#else
  if constexpr (kBytes == 1) return plane[lane];
  return LoadU16(plane + 2 * lane);
#endif
}

// Aligned to 16 bytes, or to their size where that is less.
template <int kCount>
WL_INLINE void StoreWords(const uint32_t (&words)[kCount], uint8_t* to) {
#ifdef __CUDA_ARCH__
  if constexpr (kCount == 1) {
    *reinterpret_cast<uint32_t*>(to) = words[0];
  } else if constexpr (kCount == 2) {
    *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  } else {
    static_assert(kCount % 4 == 0);
    WL_UNROLL
    for (int i = 0; i < kCount / 4; ++i) {
      reinterpret_cast<uint4*>(to)[i] =
          make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    }
  }
#else
  memcpy(to, words, sizeof(words));
#endif
}

// A word of a decoder's table, or two.
WL_INLINE uint32_t TableWord(const uint8_t* table, uint32_t byte_offset) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isShared(table));
  return *reinterpret_cast<const uint32_t*>(table + byte_offset);
#else
  uint32_t word;
  memcpy(&word, table + byte_offset, sizeof(word));
  return word;
#endif
}

WL_INLINE Words<2> TableWords2(const uint8_t* table, uint32_t byte_offset) {
  Words<2> words;
#ifdef __CUDA_ARCH__
  __builtin_assume(__isShared(table));
  const uint2 v = *reinterpret_cast<const uint2*>(table + byte_offset);
  words.w[0] = v.x;
  words.w[1] = v.y;
#else
  memcpy(words.w, table + byte_offset, sizeof(words.w));
#endif
  return words;
}

// The block that holds value `k` of a lane's row; null beyond the matrix.
template <typename Block>
WL_HOST_DEVICE const uint8_t* FindBlock(const RawRows& raw, int h, int64_t k) {
  if (raw.rows[h] == nullptr || k >= raw.k) return nullptr;
  return raw.rows[h] + k / Block::kValues * Block::kBytes;
}

// The row g or g + 8 part of a pair, twice.
WL_INLINE uint32_t BroadcastRow(uint32_t pair, int h) {
  return h == 0 ? BroadcastLow(pair) : BroadcastHigh(pair);
}

// Fragment register of pair `pair` (0 to 3, values 2 * pair and 2 * pair + 1 of a lane's eight).
WL_INLINE uint32_t& FragmentOf(uint32_t (&step0)[4], uint32_t (&step1)[4], int h, int pair) {
  return pair < 2 ? step0[2 * pair + h] : step1[2 * (pair - 2) + h];
}

// Byte `byte` (0 to 3) of `word`, less 128, as a half twice.
WL_INLINE uint32_t ByteScale(uint32_t word, int byte) {
  const uint32_t selector = 0x4040 + static_cast<uint32_t>(byte) * 0x0101;
  return Add2(Permute(word, Twice(0x6464), selector), Twice(0xE480));
}

// code * scale * d rounded once, for integers whose product is at most 4096 in size: more than a
// half holds exactly, but the rest that the rounded product leaves is -1, 0 or 1.
WL_INLINE uint32_t ProductOfThree(uint32_t code, uint32_t scale, uint32_t d) {
  const uint32_t product = Mul2(code, scale);
  const uint32_t rest = Fma2(code, scale, Negate2(product));
  return Fma2(product, d, Mul2(rest, d));
}

}  // namespace warpline::cuda

#include "kernels/cuda/weight_format_affine.h"
#include "kernels/cuda/weight_format_codebook.h"
#include "kernels/cuda/weight_format_half.h"
#include "kernels/cuda/weight_format_integer.h"
#include "kernels/cuda/weight_format_iq1.h"
#include "kernels/cuda/weight_format_iq2.h"
#include "kernels/cuda/weight_format_iq3.h"
#include "kernels/cuda/weight_format_small.h"
