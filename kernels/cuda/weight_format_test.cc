// Packs raw blocks and decodes every fragment of every lane: the halves must be the rounded floats
// of the reference decoders, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/repack.h"
#include "kernels/quant_decode.h"
#include "kernels/quant_grids.h"
#include "model/device_bytes.h"

namespace warpline::cuda {
namespace {

#ifdef WARPLINE_SANITIZED
constexpr int kStrideOfAllScales = 37;
#else
constexpr int kStrideOfAllScales = 1;
#endif

// One fragment value and where it lies.
struct Decoded {
  int64_t row = 0;
  int64_t k = 0;
  uint32_t half = 0;
};

// Calls sink(Decoded) for all values of the groups of 32 that `wanted(row block, group)` names.
template <typename Wanted, typename Sink>
struct DecodeVisitor {
  const RepackArgs& args;
  const Wanted& wanted;
  const Sink& sink;

  template <QuantType kType>
  void Visit() const {
    using Format = WeightFormat<kType>;
    std::vector<uint8_t> table(Format::kTableBytes + 1);
    Format::MakeTable(HostQuantGrids(), table.data());
    const int groups = Format::kShape.groups;
    const int64_t block_bytes = RowBlockBytes(Format::kShape, args.k);
    for (int64_t block = 0; block < args.experts * args.row_blocks; ++block) {
      const uint8_t* const bytes = args.packed + block * block_bytes;
      for (int64_t group = 0; group < RoundUp(args.k, kPadK) / kGroupK; ++group) {
        if (!wanted(block, group)) continue;
        const int64_t slice = group / groups;
        const uint8_t* const super = bytes + SliceOffset(Format::kShape, slice / 2 * 2) +
                                     2 * static_cast<int64_t>(Format::kShape.slice_bytes);
        for (int lane = 0; lane < 32; ++lane) {
          const typename Format::Slice loaded =
              Format::Load(bytes + SliceOffset(Format::kShape, slice), super, lane);
          uint32_t steps[2][4];
          Format::Decode(loaded, table.data(), static_cast<int>(group % groups), steps[0],
                         steps[1]);
          for (int i = 0; i < 16; ++i) {  // bits of i: half of the pair, h, hi, step
            const int c = i & 1, h = (i >> 1) & 1, hi = (i >> 2) & 1, step = i >> 3;
            sink(Decoded{.row = 16 * block + lane / 4 + 8 * h,
                         .k = group * kGroupK + 8 * (lane % 4) + 4 * step + 2 * hi + c,
                         .half = (steps[step][2 * hi + h] >> (16 * c)) & 0xFFFF});
          }
        }
      }
    }
  }
  void NotAWeight() const {}
};

template <typename Wanted, typename Sink>
void DecodePacked(QuantType type, const RepackArgs& args, const Wanted& wanted, const Sink& sink) {
  VisitWeightType(type, DecodeVisitor<Wanted, Sink>{args, wanted, sink});
}

// Equal bits, the two zeros counting as one, any NaN as another.
bool SameHalf(uint32_t a, uint32_t b) {
  const bool are_nan = (a & 0x7FFF) > 0x7C00 && (b & 0x7FFF) > 0x7C00;
  return a == b || ((a | b) & 0x7FFF) == 0 || are_nan;
}

// Rows of raw blocks of one type, what they mean, and room for their packed form.
struct Matrix {
  QuantType type;
  int64_t rows;
  int64_t k;
  std::vector<uint8_t> raw;
  std::vector<float> values;
  int shift = 0;
  std::vector<uint8_t> packed;

  Matrix(QuantType type, int64_t rows, int64_t k, std::vector<uint8_t> raw)
      : type(type), rows(rows), k(k), raw(std::move(raw)), values(rows * k) {
    DequantizeRow(type, this->raw.data(), rows * k, values.data());
    if (HasWeightShift(type)) shift = WeightShift(MaxAbsOnHost(type, this->raw.data(), rows * k));
  }

  RepackArgs Pack(int32_t row_blocks, uint8_t filler = 0xA5) {
    packed.assign(row_blocks * RowBlockBytes(PackedShapeOf(type), k), filler);
    const RepackArgs args = {.raw = {raw.data(), nullptr},
                             .raw_expert_bytes = static_cast<int64_t>(raw.size()),
                             .experts = 1,
                             .rows = static_cast<int32_t>(rows),
                             .k = k,
                             .shift = shift,
                             .row_blocks = row_blocks,
                             .packed = packed.data()};
    RepackOnHost(type, args);
    return args;
  }

  // The half that must stand there.
  uint32_t Want(int64_t row, int64_t column) const {
    if (row >= rows || column >= k) return 0;
    return HalfFromDouble(std::ldexp(static_cast<double>(values[row * k + column]), shift));
  }
  // Whether `half` is right there. Infinite floats, of an infinite scale or one that overflows, may
  // become anything.
  bool Accepts(int64_t row, int64_t column, uint32_t half) const {
    if (row < rows && column < k && std::isinf(values[row * k + column])) return true;
    return SameHalf(half, Want(row, column));
  }
};

int64_t UsualK(QuantType type) { return std::max<int64_t>(InfoOf(type).block_values, 128) * 2; }

std::vector<uint8_t> RandomRaw(QuantType type, int64_t values, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> raw(RowBytes(type, values));
  for (uint8_t& byte : raw) byte = static_cast<uint8_t>(random());
  // A scale of 2^127 makes infinities; real tensors span few powers of two.
  if (type == QuantType::kMXFP4) {
    for (size_t i = 0; i < raw.size(); i += 17) raw[i] = static_cast<uint8_t>(100 + random() % 50);
  }
  if (type == QuantType::kF32 || type == QuantType::kBF16) {
    const size_t width = type == QuantType::kF32 ? 4 : 2;
    for (size_t i = width - 1; i < raw.size(); i += width) raw[i] = (raw[i] & 0x87) | 0x38;
  }
  return raw;
}

// Compares the whole packed matrix, padding included.
void ExpectDecodesExactly(Matrix& matrix, int32_t row_blocks) {
  const RepackArgs args = matrix.Pack(row_blocks);
  int64_t count = 0, wrong = 0;
  DecodePacked(
      matrix.type, args, [](int64_t, int64_t) { return true; },
      [&](const Decoded& value) {
        ++count;
        if (matrix.Accepts(value.row, value.k, value.half) || ++wrong > 5) return;
        ADD_FAILURE() << "row " << value.row << ", k " << value.k << ": got " << std::hex
                      << value.half << ", want " << matrix.Want(value.row, value.k);
      });
  EXPECT_EQ(count, 16LL * row_blocks * RoundUp(matrix.k, kPadK));
  EXPECT_EQ(wrong, 0);
}

std::vector<QuantType> WeightTypes() {
  std::vector<QuantType> types;
  for (const QuantTypeInfo& info : AllQuantTypes()) {
    if (info.is_weight) types.push_back(info.type);
  }
  return types;
}

class WeightFormatTest : public testing::TestWithParam<QuantType> {};

INSTANTIATE_TEST_SUITE_P(AllTypes, WeightFormatTest, testing::ValuesIn(WeightTypes()),
                         [](const testing::TestParamInfo<QuantType>& info) {
                           return std::string(InfoOf(info.param).name);
                         });

std::vector<uint8_t> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return std::vector<uint8_t>(std::istreambuf_iterator<char>(file),
                              std::istreambuf_iterator<char>());
}

TEST_P(WeightFormatTest, GoldenBlocks) {
  const QuantTypeInfo& info = InfoOf(GetParam());
  const std::string path = std::string(WARPLINE_TEST_DATA) + "/dequant/" + info.name;
  std::vector<uint8_t> raw = ReadFile(path + ".blocks.bin");
  const std::vector<uint8_t> floats = ReadFile(path + ".f32");
  // One block a row, or as many as make 32 values: every block is seen, the padding is zeros.
  const int64_t k = std::max(info.block_values, 32);
  const int64_t rows = static_cast<int64_t>(floats.size()) / 4 / k;
  ASSERT_GT(rows, 0);
  ASSERT_EQ(rows * k * 4, static_cast<int64_t>(floats.size()));
  Matrix matrix(info.type, rows, k, std::move(raw));
  std::memcpy(matrix.values.data(), floats.data(), floats.size());
  ExpectDecodesExactly(matrix, static_cast<int32_t>(RoundUp(rows, 16) / 16));
}

TEST_P(WeightFormatTest, RandomBlocks) {
  const QuantType type = GetParam();
  const int64_t k = UsualK(type);
  for (uint32_t seed = 0; seed < 8; ++seed) {
    Matrix matrix(type, 16, k, RandomRaw(type, 16 * k, seed));
    ExpectDecodesExactly(matrix, 1);
  }
}

TEST_P(WeightFormatTest, RowsAndColumnsBeyondTheMatrixAreZero) {
  const QuantType type = GetParam();
  const int64_t block = InfoOf(type).block_values;
  // An odd number of blocks: a last slice that is partly or wholly beyond them, where there is one.
  const int64_t k = block == 1 ? 141 : 5 * block;
  for (const int64_t rows : {1, 8, 9, 21}) {
    Matrix matrix(type, rows, k, RandomRaw(type, rows * k, static_cast<uint32_t>(rows)));
    ExpectDecodesExactly(matrix, 3);
  }
}

// Where a type's block has half scales; empty for those without.
std::vector<int> ScaleOffsets(QuantType type) {
  switch (type) {
    case QuantType::kQ4_0:
    case QuantType::kQ5_0:
    case QuantType::kQ8_0:
    case QuantType::kQ1_0:
    case QuantType::kQ2_0:
    case QuantType::kIQ4NL:
    case QuantType::kIQ4XS:
    case QuantType::kIQ1S:
    case QuantType::kIQ2XXS:
    case QuantType::kIQ2XS:
    case QuantType::kIQ2S:
    case QuantType::kIQ3XXS:
    case QuantType::kIQ3S:
      return {0};
    case QuantType::kQ4_1:
    case QuantType::kQ5_1:
    case QuantType::kQ4K:
    case QuantType::kQ5K:
      return {0, 2};
    case QuantType::kQ2K:
      return {80, 82};
    case QuantType::kQ3K:
      return {108};
    case QuantType::kQ6K:
      return {208};
    case QuantType::kTQ1_0:
      return {52};
    case QuantType::kTQ2_0:
      return {64};
    default:
      return {};
  }
}

void SetHalf(uint8_t* at, uint32_t half) {
  at[0] = static_cast<uint8_t>(half);
  at[1] = static_cast<uint8_t>(half >> 8);
}

// IQ1_M spreads its half over the top nibbles of four words.
void SetScales(QuantType type, uint8_t* block, const std::vector<uint32_t>& halves) {
  if (type == QuantType::kIQ1M) {
    for (int i = 0; i < 4; ++i) {
      uint8_t& byte = block[48 + 2 * i + 1];
      byte = static_cast<uint8_t>((byte & 15) | ((halves[0] >> (4 * i)) & 15) << 4);
    }
  }
  const std::vector<int> offsets = ScaleOffsets(type);
  for (size_t i = 0; i < offsets.size(); ++i) SetHalf(block + offsets[i], halves[i]);
}

bool HasHalfScale(QuantType type) {
  return !ScaleOffsets(type).empty() || type == QuantType::kIQ1M;
}

std::vector<QuantType> TypesWithHalfScales() {
  std::vector<QuantType> types;
  for (const QuantType type : WeightTypes()) {
    if (HasHalfScale(type)) types.push_back(type);
  }
  return types;
}

class WeightScaleTest : public testing::TestWithParam<QuantType> {};

INSTANTIATE_TEST_SUITE_P(AllTypes, WeightScaleTest, testing::ValuesIn(TypesWithHalfScales()),
                         [](const testing::TestParamInfo<QuantType>& info) {
                           return std::string(InfoOf(info.param).name);
                         });

TEST_P(WeightScaleTest, ExtremeScales) {
  const QuantType type = GetParam();
  // Zeros, subnormal, smallest normal, one, odd fraction, largest, infinity, NaN; negative ones
  // too.
  const uint32_t kHalves[] = {0x0000, 0x0001, 0x0003, 0x03FF, 0x0400, 0x0401, 0x3C00,
                              0x2A55, 0x7BFF, 0x7C00, 0x7E00, 0x8000, 0x8001, 0x83FF,
                              0x8401, 0xBC00, 0xB7FF, 0xFBFF, 0xFC00};
  const int64_t k = UsualK(type);
  const int64_t row_bytes = RowBytes(type, k);
  for (const uint32_t second : kHalves) {
    std::vector<uint8_t> raw = RandomRaw(type, 32 * k, second);
    for (int64_t row = 0; row < 32; ++row) {
      for (int64_t i = 0; i < k / InfoOf(type).block_values; ++i) {
        SetScales(type, raw.data() + row * row_bytes + i * InfoOf(type).block_bytes,
                  {kHalves[(row + i) % std::size(kHalves)], second});
      }
    }
    Matrix matrix(type, 32, k, std::move(raw));
    ExpectDecodesExactly(matrix, 2);
  }
}

// All 65,536 scales; a scale's block is decoded in one of its groups of 32, each group in turn.
TEST_P(WeightScaleTest, AllScales) {
  const QuantType type = GetParam();
  const int64_t block_values = InfoOf(type).block_values;
  const int64_t k = std::max<int64_t>(block_values, 128);
  const int64_t blocks = k / block_values;
  const int64_t rows = 1024;
  const std::vector<uint8_t> mix = RandomRaw(type, rows * k, 99);
  for (int64_t first = 0; first < 65536; first += rows * blocks * kStrideOfAllScales) {
    std::vector<uint8_t> raw = mix;
    for (int64_t i = 0; i < rows * blocks; ++i) {
      const uint32_t half = static_cast<uint32_t>(first + i);
      SetScales(type, raw.data() + i * InfoOf(type).block_bytes, {half, half * 40503 & 0xFFFF});
    }
    Matrix matrix(type, rows, k, std::move(raw));
    const RepackArgs args = matrix.Pack(rows / 16);
    int64_t wrong = 0;
    DecodePacked(
        type, args,
        [&](int64_t block, int64_t group) {
          return block_values < 128 || group == (block + first / rows) % (k / kGroupK);
        },
        [&](const Decoded& value) {
          if (matrix.Accepts(value.row, value.k, value.half) || ++wrong > 5) return;
          ADD_FAILURE() << "row " << value.row << ", k " << value.k << " of scale " << std::hex
                        << first << ": got " << value.half << ", want "
                        << matrix.Want(value.row, value.k);
        });
    ASSERT_EQ(wrong, 0);
  }
}

// Every scale byte of MXFP4 and NVFP4, with every code.
TEST(WeightFormatFp4Test, AllScaleBytes) {
  for (const QuantType type : {QuantType::kMXFP4, QuantType::kNVFP4}) {
    const QuantTypeInfo& info = InfoOf(type);
    // From 255 down to the largest scale under test, so that a shift is found for each.
    for (const int top : {0, 1, 2, 60, 120, 127, 128, 140, 200, 254, 255}) {
      if (type == QuantType::kMXFP4 && top == 255) continue;  // decodes to infinities
      const int64_t blocks_a_row = 128 / info.block_values;
      std::vector<uint8_t> raw(256 * blocks_a_row * info.block_bytes);
      for (int64_t i = 0; i < 256 * blocks_a_row; ++i) {
        uint8_t* const block = raw.data() + i * info.block_bytes;
        const int scale_bytes = type == QuantType::kMXFP4 ? 1 : 4;
        for (int j = 0; j < scale_bytes; ++j) {
          block[j] = static_cast<uint8_t>(std::min<int64_t>((i + 61 * j) % 256, top));
        }
        for (int j = scale_bytes; j < info.block_bytes; ++j) {
          block[j] = static_cast<uint8_t>(17 * j + 97 * i);
        }
      }
      Matrix matrix(type, 256, 128, std::move(raw));
      ExpectDecodesExactly(matrix, 16);
    }
  }
}

// The wide types at the ends of their range: the shift brings both ends of a tensor into halves.
TEST(WeightFormatShiftTest, FollowsTheLargestValue) {
  for (const float largest : {1e-44f, 1e-38f, 3e-5f, 1.0f, 1.99f, 2048.0f, 65504.0f, 3e38f}) {
    const double scaled = std::ldexp(static_cast<double>(largest), WeightShift(largest));
    EXPECT_GE(scaled, 2048) << largest;
    EXPECT_LT(scaled, 4096) << largest;
    std::vector<float> values(16 * 128);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = largest * static_cast<float>(i) / (i % 2 == 0 ? 2048.0f : -65536.0f);
    }
    values[5] = largest;
    values[6] = std::numeric_limits<float>::infinity();
    std::vector<uint8_t> raw(values.size() * 4);
    std::memcpy(raw.data(), values.data(), raw.size());
    EXPECT_EQ(MaxAbsOnHost(QuantType::kF32, raw.data(), 16 * 128), largest);
    Matrix matrix(QuantType::kF32, 16, 128, std::move(raw));
    ExpectDecodesExactly(matrix, 1);
  }
  EXPECT_EQ(WeightShift(0), 0);
}

// Gate above up in each row block, for two experts, with rows beyond the matrices.
TEST_P(WeightFormatTest, InterleavesGateAndUp) {
  const QuantType type = GetParam();
  const int64_t k = UsualK(type);
  const int64_t rows = 19;
  Matrix gate(type, 2 * rows, k, RandomRaw(type, 2 * rows * k, 7));
  Matrix up(type, 2 * rows, k, RandomRaw(type, 2 * rows * k, 8));
  gate.shift = up.shift = std::min(gate.shift, up.shift);
  std::vector<uint8_t> packed(2 * 4 * RowBlockBytes(PackedShapeOf(type), k));
  const int64_t half_bytes = static_cast<int64_t>(gate.raw.size()) / 2;
  const RepackArgs args = {.raw = {gate.raw.data(), up.raw.data()},
                           .raw_expert_bytes = half_bytes,
                           .experts = 2,
                           .rows = rows,
                           .k = k,
                           .shift = gate.shift,
                           .row_blocks = 4,
                           .packed = packed.data()};
  RepackOnHost(type, args);
  int64_t wrong = 0;
  DecodePacked(
      type, args, [](int64_t, int64_t) { return true; },
      [&](const Decoded& value) {
        const int64_t expert = value.row / 64, row = value.row % 64;
        const int64_t output = row / 16 * 8 + row % 8;
        const Matrix& matrix = row % 16 < 8 ? gate : up;
        const bool is_right = output < rows
                                  ? matrix.Accepts(expert * rows + output, value.k, value.half)
                                  : SameHalf(value.half, 0);
        wrong += is_right ? 0 : 1;
      });
  EXPECT_EQ(wrong, 0);
}

TEST_P(WeightFormatTest, WritesEveryByteAndStaysSmall) {
  const QuantType type = GetParam();
  const int64_t k = 512;
  Matrix matrix(type, 16, k, RandomRaw(type, 16 * k, 3));
  matrix.Pack(1, 0x00);
  const std::vector<uint8_t> first = matrix.packed;
  matrix.Pack(1, 0xFF);
  EXPECT_EQ(matrix.packed, first);

  const PackedShape shape = PackedShapeOf(type);
  EXPECT_EQ(shape.slice_bytes % 16, 0);
  EXPECT_EQ(shape.super_bytes % 16, 0);
  EXPECT_EQ(TableBytesOf(type) % 16, 0);
  // At most a tenth more than the file; TQ1_0's base-3 digits become pairs of bits. F32 is halved.
  const double ratio = static_cast<double>(first.size()) / static_cast<double>(matrix.raw.size());
  EXPECT_LE(ratio, type == QuantType::kTQ1_0 ? 66.0 / 54.0 : 1.10);
  RecordProperty("bytes_per_256_values", static_cast<int>(first.size() / 32));
}

// The plan of memory has a table of its own, since it knows no kernels.
TEST_P(WeightFormatTest, TakesWhatIsPlanned) {
  const QuantType type = GetParam();
  for (const int64_t k : {256, 512, 768, 2048}) {
    EXPECT_EQ(PackedBytes(type, 40, k), 3 * RowBlockBytes(PackedShapeOf(type), k)) << k;
  }
}

}  // namespace
}  // namespace warpline::cuda
