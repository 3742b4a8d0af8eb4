// The lane maps and swizzles of the tiles, without a GPU: packed weights are decoded lane by lane,
// activations are read as ldmatrix and as a wgmma descriptor would, fragments are multiplied by the
// element maps of the PTX manual, and the result is compared with a plain double loop.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/repack.h"
#include "kernels/quant_decode.h"
#include "kernels/quant_grids.h"

namespace warpline::cuda {
namespace {

constexpr int kLanes = 32;

// Registers of the 32 lanes of a warp: two halves each.
template <int kCount>
using WarpRegisters = std::array<std::array<uint32_t, kCount>, kLanes>;
using WarpSums = std::array<std::array<double, 4>, kLanes>;

double HalfAt(uint32_t pair, int c) { return FloatFromHalf((pair >> (16 * c)) & 0xFFFF); }

// mma.m16n8k16 (row.col): register r of A holds row lane / 4 + 8 * (r % 2) and columns 2 * (lane %
// 4)
// + 8 * (r / 2) and the next; register r of B rows 2 * (lane % 4) + 8 * r and the next of column
// lane / 4; sum i of D row lane / 4 + 8 * (i / 2), column 2 * (lane % 4) + i % 2.
void Mma(const WarpRegisters<4>& a, const WarpRegisters<2>& b, WarpSums& d) {
  double full_a[16][16], full_b[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int c = 0; c < 2; ++c) {
      for (int r = 0; r < 4; ++r) {
        full_a[g + r % 2 * 8][2 * t + r / 2 * 8 + c] = HalfAt(a[lane][r], c);
      }
      for (int r = 0; r < 2; ++r) full_b[2 * t + 8 * r + c][g] = HalfAt(b[lane][r], c);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 16; ++k) {
        d[lane][i] += full_a[lane / 4 + i / 2 * 8][k] * full_b[k][lane % 4 * 2 + i % 2];
      }
    }
  }
}

// ldmatrix.x4: lane 8 * m + r names row r (16 bytes) of matrix m; each lane gets, of each matrix,
// elements 2 * (lane % 4) and the next of row lane / 4.
WarpRegisters<4> LoadMatrices(const std::vector<uint8_t>& shared,
                              const std::array<size_t, kLanes>& address) {
  WarpRegisters<4> registers;
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int m = 0; m < 4; ++m) {
      const size_t row = address[8 * m + lane / 4];
      EXPECT_EQ(row % 16, 0u);
      registers[lane][m] = LoadU32(shared.data() + row + lane % 4 * 4);
    }
  }
  return registers;
}

// A fragments of every piece: [row block][group of 32][MMA step].
struct Fragments {
  int64_t groups = 0;
  std::vector<WarpRegisters<4>> all;
  const WarpRegisters<4>& At(int64_t row_block, int64_t group, int step) const {
    return all[(row_block * groups + group) * 2 + step];
  }
};

struct FragmentVisitor {
  const RepackArgs& args;

  template <QuantType kType>
  Fragments Visit() const {
    using Format = WeightFormat<kType>;
    std::vector<uint8_t> table(Format::kTableBytes + 1);
    Format::MakeTable(HostQuantGrids(), table.data());
    const int groups = Format::kShape.groups;
    Fragments fragments;
    fragments.groups = RoundUp(args.k, kPadK) / kGroupK;
    fragments.all.resize(args.row_blocks * fragments.groups * 2);
    for (int64_t i = 0; i < args.row_blocks * fragments.groups; ++i) {
      const int64_t slice = i % fragments.groups / groups;
      const uint8_t* const bytes =
          args.packed + i / fragments.groups * RowBlockBytes(Format::kShape, args.k);
      const uint8_t* const super =
          bytes + SliceOffset(Format::kShape, slice / 2 * 2) + 2 * Format::kShape.slice_bytes;
      for (int lane = 0; lane < kLanes; ++lane) {
        uint32_t steps[2][4];
        Format::Decode(Format::Load(bytes + SliceOffset(Format::kShape, slice), super, lane),
                       table.data(), static_cast<int>(i % groups), steps[0], steps[1]);
        for (int step = 0; step < 2; ++step) {
          std::copy(steps[step], steps[step] + 4, fragments.all[2 * i + step][lane].begin());
        }
      }
    }
    return fragments;
  }
  Fragments NotAWeight() const { return {}; }
};

// Random weights of one type, packed, and random activations as rows and as tiles.
class Product {
 public:
  static constexpr int kRows = 64;
  static constexpr int kTokens = 24;
  static constexpr int kFirstToken = 8;  // the tile starts at a row group inside the tensor
  static constexpr int kRowGroups = 5;

  Product(QuantType type, bool is_interleaved)
      : type_(type), k_(std::max(InfoOf(type).block_values * 2, 256)) {
    std::mt19937 random(static_cast<uint32_t>(type) + 5);
    const int matrices = is_interleaved ? 2 : 1;
    const int64_t rows = kRows / matrices;
    for (int m = 0; m < matrices; ++m) {
      raw_[m] = RandomRaw(random, rows);
      std::vector<float> values(rows * k_);
      DequantizeRow(type, raw_[m].data(), rows * k_, values.data());
      for (const float value : values) weights_[m].push_back(FloatFromHalf(HalfFromFloat(value)));
    }
    packed_.resize(kRows / 16 * RowBlockBytes(PackedShapeOf(type), k_));
    const RepackArgs args = {.raw = {raw_[0].data(), is_interleaved ? raw_[1].data() : nullptr},
                             .raw_expert_bytes = static_cast<int64_t>(raw_[0].size()),
                             .experts = 1,
                             .rows = static_cast<int32_t>(rows),
                             .k = k_,
                             .row_blocks = kRows / 16,
                             .packed = packed_.data()};
    RepackOnHost(type, args);
    fragments_ = VisitWeightType(type, FragmentVisitor{args});

    rows_.resize(kRowGroups * 8 * k_);
    tiles_.resize(rows_.size() * 2);
    for (int64_t row = 0; row < kRowGroups * 8; ++row) {
      for (int64_t k = 0; k < k_; ++k) {
        const uint32_t half = HalfFromFloat(static_cast<float>(random() % 257) / 64 - 2);
        rows_[row * k_ + k] = static_cast<uint16_t>(half);
        std::memcpy(tiles_.data() + TileOffset(row, k, kRowGroups), &rows_[row * k_ + k], 2);
      }
    }
  }

  int64_t k() const { return k_; }
  const Fragments& fragments() const { return fragments_; }
  uint32_t XPair(int token, int64_t k) const {
    const uint16_t* const x = rows_.data() + (kFirstToken + token) * k_ + k;
    return PackHalves(x[0], x[1]);
  }

  // What a copy of one step's run of bytes leaves in shared memory, 64 k from `step * 64` on.
  std::vector<uint8_t> SharedTile(int64_t step) const {
    const uint8_t* const begin = tiles_.data() + TileOffset(kFirstToken, step * kTileK, kRowGroups);
    return std::vector<uint8_t>(begin, begin + kTokens * 128);
  }

  // Sums of |w * x| bound what the order of a double sum can change.
  void ExpectSum(double got, int matrix, int64_t row, int token) const {
    double want = 0, size = 0;
    for (int64_t k = 0; k < k_; ++k) {
      const double term = weights_[matrix][row * k_ + k] * HalfAt(XPair(token, k), 0);
      want += term;
      size += std::fabs(term);
    }
    ASSERT_NEAR(got, want, 1e-12 * size)
        << InfoOf(type_).name << " row " << row << ", token " << token;
  }

 private:
  // Blocks whose values need no shift: MXFP4 scales above 2^11 would.
  std::vector<uint8_t> RandomRaw(std::mt19937& random, int64_t rows) const {
    const QuantTypeInfo& info = InfoOf(type_);
    std::vector<uint8_t> raw(RowBytes(type_, rows * k_));
    std::vector<float> values(info.block_values);
    for (uint8_t* block = raw.data(); block < raw.data() + raw.size();) {
      for (int i = 0; i < info.block_bytes; ++i) block[i] = static_cast<uint8_t>(random());
      DequantizeRow(type_, block, info.block_values, values.data());
      const bool is_fit = std::all_of(values.begin(), values.end(), [](float value) {
        return std::isfinite(value) && std::fabs(value) < 2048;
      });
      if (is_fit) block += info.block_bytes;
    }
    return raw;
  }

  QuantType type_;
  int64_t k_;
  std::vector<uint8_t> raw_[2];
  std::vector<double> weights_[2];  // as halves
  std::vector<uint8_t> packed_;
  Fragments fragments_;
  std::vector<uint16_t> rows_;
  std::vector<uint8_t> tiles_;
};

std::vector<QuantType> WeightTypes() {
  std::vector<QuantType> types;
  for (const QuantTypeInfo& info : AllQuantTypes()) {
    if (info.is_weight) types.push_back(info.type);
  }
  return types;
}

class MmaEmulationTest : public testing::TestWithParam<QuantType> {};

INSTANTIATE_TEST_SUITE_P(AllTypes, MmaEmulationTest, testing::ValuesIn(WeightTypes()),
                         [](const testing::TestParamInfo<QuantType>& info) {
                           return std::string(InfoOf(info.param).name);
                         });

// B fragments of the two MMA steps of group `group` of a tile, for eight tokens.
std::array<WarpRegisters<2>, 2> LoadTokens(const std::vector<uint8_t>& shared, int group,
                                           int row_group) {
  std::array<size_t, kLanes> address;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int row = lane % 8, piece = 4 * group + lane / 8;
    address[lane] = static_cast<size_t>(row_group * kTileBytes + row * 128 + (piece ^ row) * 16);
  }
  const WarpRegisters<4> matrices = LoadMatrices(shared, address);
  std::array<WarpRegisters<2>, 2> steps;
  for (int lane = 0; lane < kLanes; ++lane) {
    steps[0][lane] = {matrices[lane][0], matrices[lane][1]};
    steps[1][lane] = {matrices[lane][2], matrices[lane][3]};
  }
  return steps;
}

// The sums of one row block and eight tokens over all of k.
WarpSums MultiplyByLdmatrix(const Product& product, int row_block, int row_group) {
  WarpSums sums{};
  for (int64_t tile = 0; tile < product.k() / kTileK; ++tile) {
    const std::vector<uint8_t> shared = product.SharedTile(tile);
    for (int group = 0; group < 2; ++group) {
      const std::array<WarpRegisters<2>, 2> b = LoadTokens(shared, group, row_group);
      for (int step = 0; step < 2; ++step) {
        Mma(product.fragments().At(row_block, 2 * tile + group, step), b[step], sums);
      }
    }
  }
  return sums;
}

TEST_P(MmaEmulationTest, MmaWithLdmatrix) {
  const Product product(GetParam(), false);
  for (int row_block = 0; row_block < Product::kRows / 16; ++row_block) {
    for (int row_group = 0; row_group < Product::kTokens / 8; ++row_group) {
      const WarpSums sums = MultiplyByLdmatrix(product, row_block, row_group);
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int i = 0; i < 4; ++i) {
          product.ExpectSum(sums[lane][i], 0, 16 * row_block + lane / 4 + i / 2 * 8,
                            8 * row_group + lane % 4 * 2 + i % 2);
        }
      }
    }
  }
}

// Gate and up of one output and token lie in one lane: sums i and i + 2.
TEST_P(MmaEmulationTest, GateAndUpMeetInALane) {
  const Product product(GetParam(), true);
  for (int row_block = 0; row_block < Product::kRows / 16; ++row_block) {
    const WarpSums sums = MultiplyByLdmatrix(product, row_block, 1);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < 2; ++i) {
        const int output = 8 * row_block + lane / 4, token = 8 + lane % 4 * 2 + i;
        product.ExpectSum(sums[lane][i], 0, output, token);
        product.ExpectSum(sums[lane][i + 2], 1, output, token);
      }
    }
  }
}

// Decode steps read rows in natural order: lane 4 * g + t the 16 bytes from k = 8 * t on of token
// g.
TEST_P(MmaEmulationTest, MmaWithRowsInNaturalOrder) {
  const Product product(GetParam(), false);
  for (int row_block = 0; row_block < Product::kRows / 16; ++row_block) {
    WarpSums sums{};
    for (int64_t group = 0; group < product.k() / kGroupK; ++group) {
      for (int step = 0; step < 2; ++step) {
        WarpRegisters<2> b;
        for (int lane = 0; lane < kLanes; ++lane) {
          const int64_t k = group * kGroupK + lane % 4 * 8 + 4 * step;
          b[lane] = {product.XPair(lane / 4, k), product.XPair(lane / 4, k + 2)};
        }
        Mma(product.fragments().At(row_block, group, step), b, sums);
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < 4; ++i) {
        product.ExpectSum(sums[lane][i], 0, 16 * row_block + lane / 4 + i / 2 * 8,
                          lane % 4 * 2 + i % 2);
      }
    }
  }
}

// B of wgmma, K-major with 128-byte swizzle: rows of 128 bytes in groups of eight, a group every
// `stride` bytes. The address is formed first; then bits 7 to 9 of it are XORed into bits 4 to 6.
double SwizzledB(const std::vector<uint8_t>& shared, size_t start, size_t stride, int n, int k) {
  const size_t linear = start + static_cast<size_t>(n / 8) * stride + n % 8 * 128 + 2 * k;
  return FloatFromHalf(LoadU16(shared.data() + (linear ^ ((linear >> 7 & 7) << 4))));
}

// wgmma.m64nNk16 with A in registers: warp w of the group holds rows 16 * w to 16 * w + 15 as an
// m16k16 fragment; D as mma's, a block of eight columns after the other. A step of 16 k starts 32
// bytes further.
TEST_P(MmaEmulationTest, WgmmaWithSwizzledTiles) {
  const Product product(GetParam(), false);
  std::vector<WarpSums> sums(4 * Product::kTokens / 8);  // [warp][block of columns]
  for (int64_t tile = 0; tile < product.k() / kTileK; ++tile) {
    const std::vector<uint8_t> shared = product.SharedTile(tile);
    for (int step = 0; step < 4; ++step) {
      for (int block = 0; block < Product::kTokens / 8; ++block) {
        WarpRegisters<2> b;
        for (int lane = 0; lane < kLanes; ++lane) {
          for (int r = 0; r < 2; ++r) {
            const int k = lane % 4 * 2 + 8 * r, n = 8 * block + lane / 4;
            b[lane][r] =
                PackFloats(static_cast<float>(SwizzledB(shared, 32 * step, kTileBytes, n, k)),
                           static_cast<float>(SwizzledB(shared, 32 * step, kTileBytes, n, k + 1)));
          }
        }
        for (int warp = 0; warp < 4; ++warp) {
          Mma(product.fragments().At(warp, 2 * tile + step / 2, step % 2), b,
              sums[warp * Product::kTokens / 8 + block]);
        }
      }
    }
  }
  for (int warp = 0; warp < 4; ++warp) {
    for (int block = 0; block < Product::kTokens / 8; ++block) {
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int i = 0; i < 4; ++i) {
          product.ExpectSum(sums[warp * Product::kTokens / 8 + block][lane][i], 0,
                            16 * warp + lane / 4 + i / 2 * 8, 8 * block + lane % 4 * 2 + i % 2);
        }
      }
    }
  }
}

TEST(TileLayoutTest, PositionsAndOffsetsAreOneToOne) {
  for (int position = 0; position < kGroupK; ++position) {
    EXPECT_EQ(PositionOfK(KOfPosition(position)), position);
  }
  const int64_t row_groups = 3, k = 256;
  std::vector<bool> is_taken(row_groups * 8 * k);
  for (int64_t row = 0; row < row_groups * 8; ++row) {
    for (int64_t column = 0; column < k; ++column) {
      const int64_t offset = TileOffset(row, column, row_groups);
      ASSERT_EQ(offset % 2, 0);
      ASSERT_LT(offset / 2, static_cast<int64_t>(is_taken.size()));
      ASSERT_FALSE(is_taken[offset / 2]);
      is_taken[offset / 2] = true;
      // A step's rows are one run of bytes.
      ASSERT_EQ(offset / (row_groups * kTileBytes), column / kTileK);
      ASSERT_EQ(offset / kTileBytes % row_groups, row / kTileRows);
    }
  }
}

// The eight rows of a ldmatrix matrix, and the eight lanes of a quarter warp that store 16 bytes
// each, touch all 32 banks once.
TEST(TileLayoutTest, SwizzleSpreadsRowsOverAllBanks) {
  for (int piece = 0; piece < 8; ++piece) {
    bool is_taken[8] = {};
    for (int64_t row = 0; row < kTileRows; ++row) {
      const int64_t k = piece / 4 * kGroupK + KOfPosition(piece % 4 * 8);
      const int64_t bank_group = TileOffset(row, k, 1) / 16 % 8;
      EXPECT_FALSE(is_taken[bank_group]);
      is_taken[bank_group] = true;
    }
  }
}

}  // namespace
}  // namespace warpline::cuda
