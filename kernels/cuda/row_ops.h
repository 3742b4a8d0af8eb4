// Small operations on rows of floats: norms, what follows a product, activations, choosing rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace warpline::cuda {

// Rows of floats in device memory.
struct FloatRows {
  float* data = nullptr;
  int64_t row_count = 0;
  int64_t width = 0;
  int64_t stride = 0;  // values from one row to the next
};

// Whether writing one may change the other; columns of one matrix count as if they did. Not for no
// rows.
inline bool Overlap(const FloatRows& a, const FloatRows& b) {
  const auto end_of = [](const FloatRows& rows) {
    return rows.data + (rows.row_count - 1) * rows.stride + rows.width;
  };
  return a.data < end_of(b) && b.data < end_of(a);
}

// All functions are asynchronous on `stream`. A row's result depends on nothing but the row.

// out (+)= in / rms(in) * gamma. `out` may be `in`.
struct NormArgs {
  FloatRows in;
  const float* gamma = nullptr;  // [width] or null
  float eps = 0;
  FloatRows out;
  bool accumulate = false;
  // Unless null: `out` also as ConvertRows makes it, rows of halves and their scales.
  uint16_t* halves = nullptr;
  float* row_scale = nullptr;
  bool is_early = false;  // see early_launch.h
};
// How many runs of four values a thread of a block of kNormThreads holds of a row that the block
// holds in registers; 0 where it does not. A function of width and alignment alone, so that a row's
// bits depend on nothing else.
constexpr int kNormThreads = 512;
int HeldRuns(const NormArgs& args);
absl::Status NormRows(const NormArgs& args, cudaStream_t stream);

// out (+)= in * scale + bias, then the soft cap where it is positive. `in` may be `out`.
struct FinishArgs {
  FloatRows in;
  FloatRows out;
  float scale = 1;
  const float* bias = nullptr;      // [width] or null
  const float* row_gate = nullptr;  // [rows] or null: rows are multiplied by its sigmoid
  float soft_cap = 0;
  bool accumulate = false;
};
absl::Status FinishRows(const FinishArgs& args, cudaStream_t stream);

// gate = activation(gate) * up
absl::Status ActivateRows(Activation activation, const FloatRows& gate, const FloatRows& up,
                          cudaStream_t stream);

// out row i = in row ids[i]. The ids lie in host memory and are read before the call returns.
absl::Status ChooseRows(const FloatRows& in, absl::Span<const int32_t> ids, const FloatRows& out,
                        cudaStream_t stream);

// out[row] (+)= the sum over slots, in their order, of weights[row][slot] * y[row * slots + slot],
// and then `shared` where it is given.
struct WeightedSumArgs {
  const float* y = nullptr;        // [rows * slots][width]
  const float* weights = nullptr;  // [rows][slots]
  int slots = 0;
  const float* shared = nullptr;  // [rows][width] or null
  FloatRows out;
  bool accumulate = false;
};
absl::Status WeightedSum(const WeightedSumArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
