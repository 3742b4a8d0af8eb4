#include "kernels/cuda/parity_cases.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>
#include <utility>

#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/random_blocks.h"
#include "kernels/quant_decode.h"

namespace warpline::cuda {
namespace {

constexpr int kGuardRows = 16;  // behind the last expert
constexpr uint16_t kNanHalf = 0x7E01;

// Rows of `total` by a Zipf law with exponent 0.7, the most frequent expert not the first.
std::vector<int> ZipfCounts(int total) {
  std::vector<double> shares(kParityExperts);
  double sum = 0;
  for (int e = 0; e < kParityExperts; ++e) {
    shares[static_cast<size_t>(e)] = std::pow((e + 3) % kParityExperts + 1, -0.7);
    sum += shares[static_cast<size_t>(e)];
  }
  std::vector<int> counts;
  for (const double share : shares) counts.push_back(static_cast<int>(total * share / sum));
  return counts;
}

// A half of size 1/8 to 2 from sixteen random bits.
uint16_t RandomHalf(uint32_t bits) {
  const uint32_t exponent = 12 + ((bits >> 10) & 3);
  return static_cast<uint16_t>((bits & 0x8000) | exponent << 10 | (bits & 0x3FF));
}

}  // namespace

bool HasShape(QuantType type, const ParityShape& shape) {
  return shape.k % InfoOf(type).block_values == 0;
}

std::vector<ParityShape> ParityShapes(bool quick) {
  if (quick) return {{512, 512, true}, {400, 768, false}};
  return {{1280, 2560, true}, {2560, 640, false}, {1536, 2048, true}, {2048, 768, false}};
}

std::vector<RowPlan> ParityRowPlans(bool quick) {
  if (quick) return {{"mixed", {0, 1, 63, 64, 65, 200, 9, 0}, 16}};
  return {{"mixed", {0, 1, 63, 64, 65, 200, 300, 1000}, 16},
          {"edges", {7, 8, 9, 127, 128, 129, 255, 257}, 0},
          {"zipf", ZipfCounts(2000), 8},
          {"one", {0, 0, 0, 191, 0, 0, 0, 0}, 0}};
}

std::vector<RowPlan> FewRowPlans(bool quick) {
  if (quick) return {{"few", {1, 0, 2, 8, 0, 3, 5, 1}, 8}};
  return {{"single", {0, 0, 1, 0, 0, 0, 0, 0}, 0},
          {"few", {1, 0, 2, 8, 0, 3, 5, 1}, 8},
          {"several", {16, 9, 0, 33, 8, 1, 7, 2}, 0}};
}

RowLayout LayOutRows(const RowPlan& plan, uint64_t seed) {
  RowLayout layout;
  int next = plan.base;
  for (const int count : plan.counts) {
    layout.start.push_back(next);
    layout.count.push_back(count);
    next = static_cast<int>(RoundUp(next + count, kTileRows));
    layout.tokens += count;
  }
  layout.rows = next + kGuardRows;
  layout.tokens += 2;  // tokens that no row has
  layout.ids.assign(static_cast<size_t>(layout.rows), 0);
  layout.expert_of_row.assign(static_cast<size_t>(layout.rows), -1);
  layout.row_weight.assign(static_cast<size_t>(layout.rows), 0);
  layout.slot_row.assign(static_cast<size_t>(layout.tokens), -1);
  RandomBits random(seed);
  std::vector<int32_t> shuffled(static_cast<size_t>(layout.tokens));
  std::iota(shuffled.begin(), shuffled.end(), 0);
  for (size_t i = shuffled.size(); i > 1; --i) {
    std::swap(shuffled[i - 1], shuffled[random.Below(static_cast<uint32_t>(i))]);
  }
  for (size_t e = 0; e < plan.counts.size(); ++e) {
    for (int i = 0; i < layout.count[e]; ++i) {
      const int32_t row = layout.start[e] + i;
      const size_t index = static_cast<size_t>(row);
      layout.ids[index] = shuffled.back();
      layout.slot_row[static_cast<size_t>(shuffled.back())] = row;
      shuffled.pop_back();
      layout.expert_of_row[index] = static_cast<int32_t>(e);
      layout.row_weight[index] = 0.05f + static_cast<float>(random.Below(1000)) / 1000;
    }
  }
  return layout;
}

std::vector<uint16_t> RandomTokens(const RowLayout& layout, int k, uint64_t seed) {
  std::vector<uint16_t> x(static_cast<size_t>(layout.tokens) * static_cast<size_t>(k), kNanHalf);
  RandomBits random(seed);
  for (size_t token = 0; token < layout.slot_row.size(); ++token) {
    if (layout.slot_row[token] < 0) continue;
    for (size_t i = 0; i < static_cast<size_t>(k); i += 4) {
      uint64_t bits = random.Next();
      for (size_t j = i; j < std::min(i + 4, static_cast<size_t>(k)); ++j, bits >>= 16) {
        x[token * static_cast<size_t>(k) + j] = RandomHalf(static_cast<uint32_t>(bits & 0xFFFF));
      }
    }
  }
  return x;
}

ParityWeights RandomWeights(QuantType type, const ParityShape& shape, uint64_t seed) {
  const int64_t values = static_cast<int64_t>(shape.rows) * shape.k;
  const size_t expert_bytes = static_cast<size_t>(RowBytes(type, values));
  ParityWeights weights;
  weights.blocks.resize(kParityExperts * expert_bytes);
  weights.values.resize(static_cast<size_t>(kParityExperts * values));
  std::vector<std::thread> threads;
  for (int e = 0; e < kParityExperts; ++e) {
    threads.emplace_back([&weights, type, values, expert_bytes, e, seed] {
      const std::vector<uint8_t> blocks =
          RandomBlocks(type, values, seed + static_cast<uint64_t>(e), 0.05f);
      std::copy(blocks.begin(), blocks.end(),
                weights.blocks.begin() + static_cast<int64_t>(e * expert_bytes));
      DequantizeRow(type, blocks.data(), values, weights.values.data() + e * values);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return weights;
}

}  // namespace warpline::cuda
