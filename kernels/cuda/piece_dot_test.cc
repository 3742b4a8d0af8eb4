// The exact product with packed weights, lane by lane on the host, for every type: against plain
// double loops, with inputs far beyond halves.
#include "kernels/cuda/piece_dot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/repack.h"
#include "kernels/quant_decode.h"
#include "kernels/quant_grids.h"

namespace warpline::cuda {
namespace {

constexpr int kRows = 40;  // of a matrix: the last row block is not full
constexpr int kRowBlocks = 3;

struct SumVisitor {
  const uint8_t* packed;
  int k;
  const std::vector<float>& x;

  // The rows of all row blocks in their packed order.
  template <QuantType kType>
  std::vector<float> Visit() const {
    using Format = WeightFormat<kType>;
    std::vector<uint8_t> table(Format::kTableBytes + 1);
    Format::MakeTable(HostQuantGrids(), table.data());
    std::vector<float> sums(kRowBlocks * kRowBlock, 0);
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      for (int lane = 0; lane < 32; ++lane) {
        float parts[2] = {0, 0};
        AddRowBlock<kType>(packed + row_block * RowBlockBytes(Format::kShape, k), k, x.data(),
                           static_cast<int>(x.size()), table.data(), lane, parts);
        for (int h = 0; h < 2; ++h) sums[row_block * kRowBlock + 8 * h + lane / 4] += parts[h];
      }
    }
    return sums;
  }
  std::vector<float> NotAWeight() const { return {}; }
};

class PieceDotTest : public testing::TestWithParam<QuantType> {
 protected:
  // Blocks whose values need no shift.
  std::vector<uint8_t> RandomRaw(int64_t values) {
    const QuantTypeInfo& info = InfoOf(GetParam());
    std::vector<uint8_t> raw(RowBytes(GetParam(), values));
    std::vector<float> decoded(info.block_values);
    for (uint8_t* block = raw.data(); block < raw.data() + raw.size();) {
      for (int i = 0; i < info.block_bytes; ++i) block[i] = static_cast<uint8_t>(random_());
      DequantizeRow(GetParam(), block, info.block_values, decoded.data());
      const bool is_fit = std::all_of(decoded.begin(), decoded.end(), [](float value) {
        return std::isfinite(value) && std::fabs(value) < 2048;
      });
      if (is_fit) block += info.block_bytes;
    }
    return raw;
  }

  std::mt19937 random_{11};
};

INSTANTIATE_TEST_SUITE_P(AllTypes, PieceDotTest, testing::ValuesIn([] {
                           std::vector<QuantType> types;
                           for (const QuantTypeInfo& info : AllQuantTypes()) {
                             if (info.is_weight) types.push_back(info.type);
                           }
                           return types;
                         }()),
                         [](const testing::TestParamInfo<QuantType>& info) {
                           return std::string(InfoOf(info.param).name);
                         });

TEST_P(PieceDotTest, SumsAreThoseOfPlainLoops) {
  const int block_values = InfoOf(GetParam()).block_values;
  // A width that must be padded to a multiple of 128 where the type has such.
  const int k = block_values < 128 ? 160 / block_values * block_values : 256;
  const int padded = static_cast<int>(RoundUp(k, kPadK));
  for (const bool is_gate_up : {false, true}) {
    const int rows = is_gate_up ? kRows / 2 : kRows;
    const std::vector<uint8_t> raw[2] = {RandomRaw(int64_t{rows} * k),
                                         RandomRaw(int64_t{rows} * k)};
    std::vector<uint8_t> packed(kRowBlocks * RowBlockBytes(PackedShapeOf(GetParam()), padded));
    RepackOnHost(GetParam(), {.raw = {raw[0].data(), is_gate_up ? raw[1].data() : nullptr},
                              .raw_expert_bytes = static_cast<int64_t>(raw[0].size()),
                              .experts = 1,
                              .rows = rows,
                              .k = k,
                              .row_blocks = kRowBlocks,
                              .packed = packed.data()});
    std::vector<float> x(k);
    for (float& value : x) value = std::ldexp(static_cast<float>(random_() % 2001) - 1000, 15);
    const std::vector<float> sums =
        VisitWeightType(GetParam(), SumVisitor{packed.data(), padded, x});
    std::vector<float> weights[2];
    for (int m = 0; m < 2; ++m) {
      weights[m].resize(int64_t{rows} * k);
      DequantizeRow(GetParam(), raw[m].data(), int64_t{rows} * k, weights[m].data());
    }
    for (int packed_row = 0; packed_row < kRowBlocks * kRowBlock; ++packed_row) {
      const int matrix = is_gate_up ? packed_row % kRowBlock / 8 : 0;
      const int row =
          is_gate_up ? packed_row / kRowBlock * 8 + packed_row % kRowBlock % 8 : packed_row;
      double want = 0;
      double size = 0;
      for (int i = 0; i < k && row < rows; ++i) {
        const uint32_t weight = HalfFromFloat(weights[matrix][int64_t{row} * k + i]);
        want += static_cast<double>(FloatFromHalf(weight)) * x[i];
        size += std::fabs(static_cast<double>(FloatFromHalf(weight)) * x[i]);
      }
      ASSERT_NEAR(sums[packed_row], want, 1e-5 * size) << "row " << row << " of " << matrix;
    }
  }
}

}  // namespace
}  // namespace warpline::cuda
