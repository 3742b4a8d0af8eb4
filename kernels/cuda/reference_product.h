// What the checks compare expert kernels with: the same product in plain double loops on the
// device, and the comparison of all outputs there. Independent of the decoders, layouts and MMA of
// kernels: weights come as floats that the CPU's decoder made.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/raii.h"

namespace warpline::cuda {

// sums[row][column] = x[ids[row]] * weights[expert_of_row[row]][column], in double over k from the
// operands rounded to halves. Rows with expert -1 are skipped; eight rows from a multiple of eight
// on belong to one expert.
struct ReferenceArgs {
  const float* weights = nullptr;  // [experts][columns][k]
  float weight_factor = 1;         // power of two before rounding to half, undone in the sum
  const uint16_t* x = nullptr;     // halves [tokens][k]
  const int32_t* ids = nullptr;    // [rows]
  const int32_t* expert_of_row = nullptr;  // [rows]
  int rows = 0;
  int columns = 0;
  int k = 0;
  double* sums = nullptr;  // [rows][columns]
};
absl::Status ReferenceProduct(const ReferenceArgs& args, cudaStream_t stream);

// sums[row][c] of `gate_up` (columns 0 to n_ff - 1 gate, then up) become silu(gate) * up in `h`
// [rows][n_ff].
absl::Status ReferenceSwiglu(const double* gate_up, int rows, int n_ff, double* h,
                             cudaStream_t stream);

enum class OutputKind : int32_t { kFloatRows, kHalfRows, kHalfTiles };

struct CompareArgs {
  const double* reference = nullptr;       // [rows][columns]
  double factor = 1;                       // of every reference value
  const float* row_weight = nullptr;       // [rows], multiplies the reference too; null: 1
  const int32_t* expert_of_row = nullptr;  // [rows]; -1: a guard row that must be untouched
  const void* output = nullptr;
  OutputKind kind = OutputKind::kFloatRows;
  int row_groups = 0;  // of tiles
  int rows = 0;
  int columns = 0;         // live ones
  int output_columns = 0;  // of a row of the output; tiles: padding beyond `columns` must be 0
};

// Filled by Compare; doubles as the bits of non-negative numbers, so that atomic maxima work.
struct CompareCounts {
  uint64_t max_reference = 0;
  uint64_t max_error = 0;
  uint64_t max_excess = 0;  // of |error| - 2^-11 |reference| (halves), or of |error| (floats)
  uint64_t hash = 0;        // of all live bits and their places
  uint32_t not_finite = 0;  // live outputs that are NaN or infinite
  uint32_t touched = 0;     // outputs of guard rows that are no longer kGuardByte everywhere
};
constexpr int kGuardByte = 0xFF;  // outputs are filled with it before a kernel runs

struct Comparison {
  double max_reference = 0;
  double max_error = 0;
  double max_excess = 0;
  uint64_t hash = 0;
  uint32_t not_finite = 0;
  uint32_t touched = 0;
};

// Compares on the device; waits for the stream. `counts` is device memory of the caller's, of one
// CompareCounts.
absl::StatusOr<Comparison> Compare(const CompareArgs& args, const DeviceBuffer& counts,
                                   cudaStream_t stream);

}  // namespace warpline::cuda
