// The inner loops of Gated DeltaNet, wide residuals and the n-gram table, one table for each
// instruction set. Both give the same bits.
#pragma once

#include <cstdint>

#include "kernels/cpu/instruction_set.h"

namespace warpline {

enum class GateKind { kSigmoid, kSilu };

// The recurrence of one head for some of its value dims, which do not depend on one another, over
// consecutive rows of a sequence.
struct DeltaBlock {
  float* memory = nullptr;  // [head_dim, head_dim] at the first of the value dims
  int head_dim = 0;         // key dims, and values from one key dim to the next
  int columns = 0;          // value dims, at most kDeltaColumns
  int64_t row_count = 0;
  const float* q = nullptr;  // of the first row; v and out at the first of the value dims
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t qkv_stride = 0;
  const float* beta = nullptr;
  int64_t beta_stride = 0;
  const float* decay = nullptr;
  int64_t decay_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};
constexpr int kDeltaColumns = 32;

struct HybridKernels {
  // out = silu(sum over taps of kernel[j] . columns[j]), j ascending; `kernel` [taps, stride].
  void (*conv)(const float* const* columns, int taps, const float* kernel, int64_t stride,
               int64_t width, float* out);
  // values = factor values / sqrt(sum of squares + eps)
  void (*unit_norm)(float eps, float factor, int64_t width, float* values);
  void (*delta_block)(const DeltaBlock& block);
  // values = silu(values / divisor)
  void (*scaled_silu)(float divisor, int64_t width, float* values);
  // out[i] = mean over streams of values[c, i] sigmoid(gates[c, i]); both [streams, width].
  void (*mix)(const float* values, const float* gates, int streams, int64_t width, float* out);
  float (*dot)(const float* a, const float* b, int64_t width);
  // values *= sigmoid(gate), or silu(gate).
  void (*gate)(const float* gate, GateKind kind, int64_t width, float* values);
};

const HybridKernels& GetHybridKernels(InstructionSet set);

}  // namespace warpline
