// F16, BF16 and F32 packed as halves: a piece is the fragments themselves. Included by
// weight_format.h.
#pragma once

namespace warpline::cuda {

// Piece: 16 bytes a lane for each MMA step, four times.
template <QuantType kType>
struct HalfFormat {
  static constexpr PackedShape kShape = {.slice_bytes = 2048, .super_bytes = 0, .groups = 2};
  static constexpr int kTableBytes = 0;

  struct Slice {
    Words<4> steps[4];
  };

  WL_INLINE static Slice Load(const uint8_t* piece, const uint8_t*, int lane) {
    Slice slice;
    WL_UNROLL
    for (int i = 0; i < 4; ++i) slice.steps[i] = LoadWords<4>(piece + 512 * i + 16 * lane);
    return slice;
  }

  WL_INLINE static void Decode(const Slice& slice, const uint8_t*, int group, uint32_t (&step0)[4],
                               uint32_t (&step1)[4]) {
    WL_UNROLL
    for (int i = 0; i < 4; ++i) {
      step0[i] = slice.steps[2 * group].w[i];
      step1[i] = slice.steps[2 * group + 1].w[i];
    }
  }

  static void MakeTable(const QuantGrids&, uint8_t*) {}

  WL_HOST_DEVICE static void PackLane(const RawRows& raw, int slice, int lane, uint8_t* piece,
                                      uint8_t*) {
    WL_UNROLL
    for (int j = 0; j < 2; ++j) {
      uint32_t steps[2][4] = {};
      WL_UNROLL
      for (int h = 0; h < 2; ++h) {
        WL_UNROLL
        for (int i = 0; i < 8; ++i) {
          // Each value is a block of its own: k need not be a multiple of eight.
          const int64_t k = (2 * static_cast<int64_t>(slice) + j) * kGroupK + lane % 4 * 8 + i;
          const uint8_t* const value = FindBlock<Block>(raw, h, k);
          if (value == nullptr) continue;
          steps[i / 4][i % 4 / 2 * 2 + h] |= HalfOf(value, raw.shift) << (16 * (i % 2));
        }
      }
      StoreWords(steps[0], piece + 512 * (2 * j) + 16 * lane);
      StoreWords(steps[1], piece + 512 * (2 * j + 1) + 16 * lane);
    }
  }

 private:
  using Block = typename BlockOf<kType>::Type;

  WL_HOST_DEVICE static uint32_t HalfOf(const uint8_t* value, int shift) {
    if constexpr (kType == QuantType::kF16) {
      return LoadU16(value);
    } else {
      float decoded;
      Block::Decode(value, QuantGrids(), &decoded);
      const uint64_t power_bits = static_cast<uint64_t>(shift + 1023) << 52;
      double power;
      memcpy(&power, &power_bits, sizeof(power));
      return HalfFromDouble(decoded * power);
    }
  }
};

template <>
struct WeightFormat<QuantType::kF16> : HalfFormat<QuantType::kF16> {};
template <>
struct WeightFormat<QuantType::kBF16> : HalfFormat<QuantType::kBF16> {};
template <>
struct WeightFormat<QuantType::kF32> : HalfFormat<QuantType::kF32> {};

}  // namespace warpline::cuda
