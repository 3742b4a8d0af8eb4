#include "kernels/cuda/random_blocks.h"

#include <cmath>
#include <cstring>

#include "base/status.h"
#include "kernels/cuda/half_math.h"
#include "kernels/quant_decode.h"

namespace warpline::cuda {
namespace {

// Where a type keeps its half scale, and its half minimum with what the minimum is of the scale so
// that decoded values lie around zero.
struct ScalePlace {
  int scale = -1;
  int minimum = -1;
  float minimum_ratio = 0;
};

ScalePlace PlaceOf(QuantType type) {
  switch (type) {
    case QuantType::kQ4_1:
      return {0, 2, -7.5f};
    case QuantType::kQ5_1:
      return {0, 2, -15.5f};
    case QuantType::kQ2K:
      return {80, 82, 1.5f};
    case QuantType::kQ4K:
      return {0, 2, 7.5f};
    case QuantType::kQ5K:
      return {0, 2, 15.5f};
    case QuantType::kQ3K:
      return {.scale = 108};
    case QuantType::kQ6K:
      return {.scale = 208};
    case QuantType::kTQ1_0:
      return {.scale = 52};
    case QuantType::kTQ2_0:
      return {.scale = 64};
    default:
      return {.scale = 0};
  }
}

void StoreHalf(float value, uint8_t* to) {
  const uint32_t half = HalfFromFloat(value);
  to[0] = static_cast<uint8_t>(half);
  to[1] = static_cast<uint8_t>(half >> 8);
}

// The floats of `type` that are no blocks.
void FillPlain(QuantType type, RandomBits& random, float deviation, uint8_t* block) {
  const float value = random.Normal() * deviation;
  if (type == QuantType::kF16) return StoreHalf(value, block);
  uint8_t bytes[4];
  std::memcpy(bytes, &value, sizeof(bytes));
  std::memcpy(block, type == QuantType::kF32 ? bytes : bytes + 2, type == QuantType::kF32 ? 4 : 2);
}

// TQ1_0 packs five base-3 digits v as the rounded-up v * 256 / 243, its last four bytes four
// digits.
void FillTernary(RandomBits& random, uint8_t* block) {
  for (int i = 0; i < 52; ++i) {
    const uint32_t digits = i < 48 ? random.Below(243) : 3 * random.Below(81);
    block[i] = static_cast<uint8_t>((digits * 256 + 242) / 243);
  }
}

// IQ1_M keeps its half scale in the top nibbles of four words.
void SetScaleIq1m(float scale, uint8_t* block) {
  const uint32_t half = HalfFromFloat(scale);
  for (int i = 0; i < 4; ++i) {
    uint8_t& top = block[48 + 2 * i + 1];
    top = static_cast<uint8_t>((top & 15) | ((half >> (4 * i)) & 15) << 4);
  }
}

void SetScale(QuantType type, float scale, uint8_t* block) {
  if (type == QuantType::kIQ1M) return SetScaleIq1m(scale, block);
  const ScalePlace place = PlaceOf(type);
  StoreHalf(scale, block + place.scale);
  if (place.minimum >= 0) StoreHalf(scale * place.minimum_ratio, block + place.minimum);
}

// Scales that are bytes: powers of two, or numbers of four bits' precision. `level` is about the
// value they shall have, times twice.
void SetByteScales(QuantType type, RandomBits& random, float level, uint8_t* block) {
  const int exponent = std::ilogb(level);
  if (type == QuantType::kMXFP4) {
    block[0] = static_cast<uint8_t>(127 + exponent + static_cast<int>(random.Below(3)) - 1);
    return;
  }
  for (int i = 0; i < 4; ++i) {  // sixteen values each
    block[i] = static_cast<uint8_t>(((7 + exponent) << 3 | 4) + static_cast<int>(random.Below(8)));
  }
}

void FillCodes(QuantType type, RandomBits& random, uint8_t* block, int bytes) {
  for (int i = 0; i < bytes; i += 8) {
    const uint64_t bits = random.Next();
    std::memcpy(block + i, &bits, static_cast<size_t>(std::min(8, bytes - i)));
  }
  if (type == QuantType::kTQ1_0) FillTernary(random, block);
  if (type == QuantType::kTQ2_0) {  // no quantiser writes the code 3
    for (int i = 0; i < 64; ++i) block[i] &= static_cast<uint8_t>(~((block[i] >> 1) & 0x55));
  }
}

bool IsPlain(QuantType type) {
  return type == QuantType::kF32 || type == QuantType::kF16 || type == QuantType::kBF16;
}

bool HasByteScales(QuantType type) {
  return type == QuantType::kMXFP4 || type == QuantType::kNVFP4;
}

// Root mean square of decoded values when the scale is 1.
float UnitDeviation(const QuantTypeInfo& info) {
  constexpr int kBlocks = 64;
  RandomBits random(1);
  std::vector<uint8_t> blocks(static_cast<size_t>(kBlocks * info.block_bytes));
  for (int b = 0; b < kBlocks; ++b) {
    uint8_t* const block = blocks.data() + b * info.block_bytes;
    FillCodes(info.type, random, block, info.block_bytes);
    SetScale(info.type, 1, block);
  }
  std::vector<float> values(static_cast<size_t>(kBlocks * info.block_values));
  DequantizeRow(info.type, blocks.data(), static_cast<int64_t>(values.size()), values.data());
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return static_cast<float>(std::sqrt(sum / static_cast<double>(values.size())));
}

}  // namespace

uint64_t RandomBits::Next() {  // SplitMix64
  state_ += 0x9E3779B97F4A7C15ull;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

float RandomBits::Normal() {
  const uint64_t bits = Next();
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((bits >> (16 * i)) & 0xFFFF);
  return (sum * 0x1p-16f - 2) * 1.7320508f;
}

std::vector<uint8_t> RandomBlocks(QuantType type, int64_t value_count, uint64_t seed,
                                  float deviation) {
  const QuantTypeInfo& info = InfoOf(type);
  WL_CHECK(info.is_weight && value_count % info.block_values == 0);
  const int64_t count = value_count / info.block_values;
  std::vector<uint8_t> blocks(static_cast<size_t>(count * info.block_bytes));
  const bool is_scaled = !IsPlain(type) && !HasByteScales(type);
  const float unit = is_scaled ? UnitDeviation(info) : 1;
  RandomBits random(seed);
  for (int64_t b = 0; b < count; ++b) {
    uint8_t* const block = blocks.data() + b * info.block_bytes;
    if (IsPlain(type)) {
      FillPlain(type, random, deviation, block);
      continue;
    }
    FillCodes(type, random, block, info.block_bytes);
    if (HasByteScales(type)) {
      SetByteScales(type, random, deviation / 3, block);  // codes have about 3 as deviation
    } else {
      SetScale(type,
               deviation / unit * (0.75f + 0.5f * static_cast<float>(random.Below(256)) / 256),
               block);
    }
  }
  return blocks;
}

}  // namespace warpline::cuda
