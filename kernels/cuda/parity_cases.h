// The cases of warpline-parity: shapes, how rows fall to experts, and the operands. Plain C++.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/quant.h"

namespace warpline::cuda {

// Weight rows times k. Shapes of gate and up have 2 * n_ff rows: gate, then up.
struct ParityShape {
  int rows = 0;
  int k = 0;
  bool is_gate_up = false;
};

// Whether rows of `k` values of `type` exist: k is a multiple of its block.
bool HasShape(QuantType type, const ParityShape& shape);

// The four shapes, or two small ones, of which one has no whole number of tiles of weight rows.
std::vector<ParityShape> ParityShapes(bool quick);

// How many rows each expert has, and where the first one begins.
struct RowPlan {
  std::string name;
  std::vector<int> counts;
  int base = 0;  // row of the first expert's first row; a multiple of 8
};

constexpr int kParityExperts = 8;

// Row counts 0 to 1000 on both sides of every tile, one expert with all, one row each, and a Zipf
// distribution; `few` gives those of decode steps, up to 8 rows an expert.
std::vector<RowPlan> ParityRowPlans(bool quick);
std::vector<RowPlan> FewRowPlans(bool quick);

// Rows laid out as the kernels want them: experts in order, each from a multiple of 8 on.
struct RowLayout {
  std::vector<int32_t> start;          // [experts]
  std::vector<int32_t> count;          // [experts]
  std::vector<int32_t> ids;            // [rows] token of each row, each another one; gaps: 0
  std::vector<int32_t> expert_of_row;  // [rows]; -1 in gaps, before the base and in the guard tail
  std::vector<float> row_weight;       // [rows], routing weights
  std::vector<int32_t> slot_row;       // [tokens] row of each token; -1: it has none
  int rows = 0;                        // a multiple of 8, guard rows included
  int tokens = 0;
};
RowLayout LayOutRows(const RowPlan& plan, uint64_t seed);

// Random halves [tokens][k]; tokens that no row uses are NaN.
std::vector<uint16_t> RandomTokens(const RowLayout& layout, int k, uint64_t seed);

// Blocks of all experts of a shape, and what the CPU decodes from them.
struct ParityWeights {
  std::vector<uint8_t> blocks;  // [experts][rows] of GGUF blocks
  std::vector<float> values;    // [experts][rows][k]
};
ParityWeights RandomWeights(QuantType type, const ParityShape& shape, uint64_t seed);

}  // namespace warpline::cuda
