// The host twins of the device's half arithmetic against definitions: the nearest half, exact
// integers, bytes taken one by one.
#include "kernels/cuda/half_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace warpline::cuda {
namespace {

constexpr uint32_t kInfinity = 0x7C00;

bool IsNan(uint32_t half) { return (half & 0x7FFF) > kInfinity; }

TEST(HalfMathTest, EveryHalfConvertsToItself) {
  for (uint32_t half = 0; half < 65536; ++half) {
    if (IsNan(half)) {
      EXPECT_TRUE(IsNan(HalfFromFloat(FloatFromHalf(half))));
    } else {
      ASSERT_EQ(HalfFromFloat(FloatFromHalf(half)), half);
    }
  }
}

TEST(HalfMathTest, RoundsToTheNearestAndTiesToEven) {
  // From 0 up to the largest finite half; infinity stands for the number that would follow.
  for (uint32_t half = 0; half < kInfinity; ++half) {
    const double low = FloatFromHalf(half);
    const double high = half + 1 == kInfinity ? 65536 : FloatFromHalf(half + 1);
    const double middle = (low + high) / 2;
    const uint32_t even = half % 2 == 0 ? half : half + 1;
    ASSERT_EQ(HalfFromDouble(middle), even);
    ASSERT_EQ(HalfFromDouble(std::nextafter(middle, 0)), half);
    ASSERT_EQ(HalfFromDouble(std::nextafter(middle, 1e9)), half + 1);
    ASSERT_EQ(HalfFromDouble(-middle), even | 0x8000);
    // A half and a half step is exact in single precision too.
    ASSERT_EQ(HalfFromFloat(static_cast<float>(middle)), even);
    ASSERT_EQ(HalfFromFloat(std::nextafterf(static_cast<float>(middle), 1e9f)), half + 1);
  }
  EXPECT_EQ(HalfFromDouble(1e300), kInfinity);
  EXPECT_EQ(HalfFromDouble(std::numeric_limits<double>::infinity()), kInfinity);
  EXPECT_EQ(HalfFromDouble(-1e-300), 0x8000u);
  EXPECT_TRUE(IsNan(HalfFromDouble(std::nan(""))));
}

// A finite half as an integer number of 2^-24.
int64_t Units(uint32_t half) {
  return static_cast<int64_t>(std::ldexp(static_cast<double>(FloatFromHalf(half)), 24));
}

// The half nearest to value * 2^-48, ties to even, by searching all halves.
uint32_t NearestHalf(__int128 value) {
  const bool is_negative = value < 0;
  const __int128 magnitude = is_negative ? -value : value;
  uint32_t below = 0, above = kInfinity;  // Units(below) <= magnitude < Units(above)
  const auto units48 = [](uint32_t half) {
    return static_cast<__int128>(half == kInfinity ? 65536LL << 24 : Units(half)) << 24;
  };
  if (magnitude >= units48(kInfinity)) return kInfinity | (is_negative ? 0x8000 : 0);
  while (above - below > 1) {
    const uint32_t middle = (below + above) / 2;
    (units48(middle) <= magnitude ? below : above) = middle;
  }
  const __int128 twice = 2 * magnitude;
  const __int128 sum = units48(below) + units48(above);
  const bool is_upper = twice > sum || (twice == sum && below % 2 == 1);
  return (is_upper ? above : below) | (is_negative ? 0x8000 : 0);
}

bool SameHalf(uint32_t a, uint32_t b) { return a == b || ((a | b) & 0x7FFF) == 0; }

TEST(HalfMathTest, ProductsSumsAndFusedOnesRoundOnce) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    uint32_t v[6];
    for (uint32_t& half : v) {
      half = random() & 0xFFFF;
      if (i % 3 == 0) half = (half & 0x83FF) | 0x2C00;  // near each other, so that sums cancel
      if ((half & 0x7FFF) >= kInfinity) half &= 0x83FF;
    }
    const uint32_t a = PackHalves(v[0], v[1]), b = PackHalves(v[2], v[3]),
                   c = PackHalves(v[4], v[5]);
    const uint32_t product = Mul2(a, b), sum = Add2(a, b), fused = Fma2(a, b, c);
    for (int h = 0; h < 2; ++h) {
      const __int128 exact = static_cast<__int128>(Units(v[h])) * Units(v[2 + h]);
      const int64_t added = Units(v[h]) + Units(v[2 + h]);
      const int shift = 16 * h;
      ASSERT_TRUE(SameHalf((product >> shift) & 0xFFFF, NearestHalf(exact)));
      ASSERT_TRUE(
          SameHalf((sum >> shift) & 0xFFFF, NearestHalf(static_cast<__int128>(added) << 24)));
      const __int128 addend = static_cast<__int128>(Units(v[4 + h])) << 24;
      ASSERT_TRUE(SameHalf((fused >> shift) & 0xFFFF, NearestHalf(exact + addend)))
          << v[h] << " * " << v[2 + h] << " + " << v[4 + h];
    }
  }
}

// 2049 * 2049 is no half, and with a tiny addend the sum lies just above or below a tie.
TEST(HalfMathTest, AFusedSumBesideATieIsNotATie) {
  const uint32_t one = 0x3C00, step = 0x3C01, tiny = 0x0001;
  // (1 + 2^-10)^2 = 1 + 2^-9 + 2^-20; times 1 plus half a step of 1 is a tie that 2^-24 breaks.
  const uint32_t half_step = HalfFromDouble(std::ldexp(1, -11));
  EXPECT_EQ(Fma2(one, one, half_step) & 0xFFFF, one);  // the tie goes to even
  EXPECT_EQ(Fma2(step, one, half_step) & 0xFFFF, 0x3C02u);
  EXPECT_EQ(Fma2(step, half_step, one) & 0xFFFF, step);  // half a step and 2^-21: above the tie
  EXPECT_EQ(Fma2(tiny, tiny, half_step) & 0xFFFF, half_step);
}

TEST(HalfMathTest, PermuteTakesBytesAndSigns) {
  std::mt19937 random(2);
  for (int i = 0; i < 1000; ++i) {
    const uint32_t low = random(), high = random(), selector = random();
    uint32_t want = 0;
    for (int byte = 0; byte < 4; ++byte) {
      const uint32_t nibble = (selector >> (4 * byte)) & 15;
      const uint32_t word = (nibble & 4) != 0 ? high : low;
      uint32_t value = (word >> (8 * (nibble & 3))) & 255;
      if (nibble >= 8) value = value >= 128 ? 255 : 0;
      want |= value << (8 * byte);
    }
    ASSERT_EQ(Permute(low, high, selector), want);
  }
}

TEST(HalfMathTest, ShiftsAndPairs) {
  EXPECT_EQ(FunnelShiftRight(0x80000001, 0x0000000F, 4), 0xF8000000u);
  EXPECT_EQ(FunnelShiftRight(0x12345678, 0xFFFFFFFF, 0), 0x12345678u);
  EXPECT_EQ(Shift(0xF0, 4), 0x0Fu);
  EXPECT_EQ(Shift(0x0F, -4), 0xF0u);
  EXPECT_EQ(BroadcastLow(0x12345678), 0x56785678u);
  EXPECT_EQ(BroadcastHigh(0x12345678), 0x12341234u);
  EXPECT_EQ(AndOr(0xFF, 0x3C, 0x03), 0x3Fu);
  EXPECT_EQ(Negate2(PackHalves(0x3C00, 0xBC00)), PackHalves(0xBC00, 0x3C00));
  EXPECT_EQ(PackFloats(1.0f, -2.0f), PackHalves(0x3C00, 0xC000));
  EXPECT_EQ(LowFloat(PackHalves(0x3C00, 0xC000)), 1.0f);
  EXPECT_EQ(HighFloat(PackHalves(0x3C00, 0x0001)), std::ldexp(1.0f, -24));
}

TEST(HalfMathTest, IntegersAsHalves) {
  for (int value = -2048; value <= 2048; ++value) {
    ASSERT_EQ(FloatFromHalf(HalfOfInteger(value)), static_cast<float>(value));
  }
}

}  // namespace
}  // namespace warpline::cuda
