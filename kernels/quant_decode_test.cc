#include "kernels/quant_decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace warpline {
namespace {

std::vector<InstructionSet> AvailableSets() {
  std::vector<InstructionSet> sets;
  for (const char* name : {"avx2", "avx512"}) {
    const absl::StatusOr<InstructionSet> set = DetectInstructionSet(name);
    if (set.ok()) sets.push_back(*set);
  }
  return sets;
}

// Bit-equal, signs of zero included; of NaNs only that they are NaN.
bool SameBits(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

void ExpectSimdEqualsScalar(const QuantTypeInfo& info, const std::vector<uint8_t>& blocks) {
  const int64_t count = static_cast<int64_t>(blocks.size()) / info.block_bytes * info.block_values;
  std::vector<float> want(count);
  DequantizeRow(info.type, blocks.data(), count, want.data());
  for (const InstructionSet set : AvailableSets()) {
    std::vector<float> got(count + 1, 12345.0f);
    FastDequantizer(info.type, set)(blocks.data(), count, got.data());
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_TRUE(SameBits(got[i], want[i]))
          << info.name << " " << InstructionSetName(set) << " value " << i << ": " << got[i]
          << ", scalar " << want[i];
    }
    EXPECT_EQ(got[count], 12345.0f) << info.name << " wrote beyond the row";
  }
}

TEST(QuantDecodeTest, SimdEqualsScalarOnRandomBlocks) {
  ASSERT_FALSE(AvailableSets().empty());
  std::mt19937 random(7);
  for (const QuantTypeInfo& info : AllQuantTypes()) {
    if (!info.is_weight) continue;
    // Any bytes: scales of all sizes, infinite and NaN ones among them.
    std::vector<uint8_t> blocks(static_cast<size_t>(info.block_bytes) * 400);
    for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random());
    ExpectSimdEqualsScalar(info, blocks);
  }
}

TEST(QuantDecodeTest, SimdEqualsScalarWithUniformBytes) {
  for (const QuantTypeInfo& info : AllQuantTypes()) {
    if (!info.is_weight) continue;
    // Each byte value throughout: all codes at their ends, infinite and zero scales.
    for (int byte = 0; byte < 256; ++byte) {
      ExpectSimdEqualsScalar(info, std::vector<uint8_t>(info.block_bytes * 16, byte));
    }
  }
}

TEST(QuantDecodeTest, PlainFloatsTakeAnyCount) {
  std::mt19937 random(3);
  for (const QuantType type : {QuantType::kF32, QuantType::kF16, QuantType::kBF16}) {
    for (int count = 0; count <= 35; ++count) {
      std::vector<uint8_t> bytes(RowBytes(type, count));
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
      ExpectSimdEqualsScalar(InfoOf(type), bytes);
    }
  }
}

// Every half float against its definition: (-1)^s 2^(e-15) 1.f, or 2^-14 0.f for e = 0.
TEST(QuantDecodeTest, AllHalfFloats) {
  for (int bits = 0; bits < 65536; ++bits) {
    const int exponent = bits >> 10 & 31;
    const int fraction = bits & 1023;
    double want =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) want = fraction == 0 ? std::numeric_limits<double>::infinity() : NAN;
    if ((bits & 0x8000) != 0) want = -want;
    const uint8_t bytes[2] = {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)};
    float got;
    DequantizeRow(QuantType::kF16, bytes, 1, &got);
    ASSERT_TRUE(SameBits(got, static_cast<float>(want))) << bits << ": " << got;
  }
}

// Scales are the format's rules, computed here in double with ldexp; code 1 of a block is the
// value 1.
TEST(QuantDecodeTest, AllScalesOfTheFp4Formats) {
  for (int byte = 0; byte < 256; ++byte) {
    std::vector<uint8_t> mxfp4(17, 0x11);
    mxfp4[0] = static_cast<uint8_t>(byte);
    float out[64];
    DequantizeRow(QuantType::kMXFP4, mxfp4.data(), 32, out);
    EXPECT_EQ(out[31], std::ldexp(1.0, byte - 128)) << byte;

    std::vector<uint8_t> nvfp4(36, 0x11);
    nvfp4[2] = static_cast<uint8_t>(byte);
    DequantizeRow(QuantType::kNVFP4, nvfp4.data(), 64, out);
    const int x = byte >> 3 & 15;
    const int f = byte & 7;
    double want = x == 0 ? std::ldexp(f, -9) : std::ldexp(8 + f, x - 10);
    if (byte == 0x7F) want = 0;
    EXPECT_EQ(out[32], want * 0.5) << byte;
  }
}

TEST(InstructionSetTest, NamesAreChecked) {
  EXPECT_EQ(DetectInstructionSet("sse2").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(DetectInstructionSet("").ok());
}

TEST(InstructionSetTest, TheBestSetIsChosen) {
  const absl::StatusOr<InstructionSet> best = DetectInstructionSet("");
  ASSERT_TRUE(best.ok());
  const absl::StatusOr<InstructionSet> wide = DetectInstructionSet("avx512");
  EXPECT_EQ(*best == InstructionSet::kAvx512, wide.ok());
  if (!wide.ok()) {
    EXPECT_EQ(wide.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(wide.status().message()), testing::HasSubstr("avx512"));
  }
}

}  // namespace
}  // namespace warpline
