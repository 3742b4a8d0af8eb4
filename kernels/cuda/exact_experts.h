// The tokens of an expert layer whose values did not fit into halves, computed again in single
// precision.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/quant_decode_common.h"
#include "model/quant.h"

namespace warpline::cuda {

// Runs of columns that Combine has left out; device memory, zeros at first and again afterwards.
struct PendingRuns {
  int32_t* any = nullptr;   // [2]: whether there are any; blocks that are done with them
  uint8_t* runs = nullptr;  // [tokens][run_count]
  int32_t run_count = 0;    // of a token
  int32_t run_columns = 0;  // of a run: 8 or 1
};

// Columns that one thread of Combine sums up at once.
constexpr int32_t RunColumns(int32_t columns) { return columns % 8 == 0 ? 8 : 1; }

// One packed matrix of all experts; device memory.
struct ExactMatrix {
  QuantType type = QuantType::kF16;
  const uint8_t* packed = nullptr;
  int64_t expert_bytes = 0;
  int32_t row_blocks = 0;
  int32_t k = 0;                // padded
  const void* table = nullptr;  // the type's, see WeightFormat::kTableBytes
  int32_t table_bytes = 0;
  float weight_scale = 1;
};

// All pointers are device memory. See ExpertStep.
struct ExactExpertsArgs {
  ExactMatrix gate;  // or gate and up in one, and `up.packed` is null
  ExactMatrix up;
  ExactMatrix down;
  const float* x = nullptr;  // [tokens] rows of n_embd, x_stride apart; null: halves are taken
  int64_t x_stride = 0;
  const uint16_t* x_halves = nullptr;   // [tokens][n_embd]
  const float* token_scale = nullptr;   // [tokens] or null (1), of the halves
  const int32_t* expert_ids = nullptr;  // [tokens][slots]
  const float* weights = nullptr;       // [tokens][slots]
  const int32_t* slot_row = nullptr;    // [tokens][slots]
  const uint8_t* overflow = nullptr;    // [rows]: hidden values beyond halves
  const uint16_t* y = nullptr;          // [rows][n_embd], halves; right where nothing overflowed
  int32_t tokens = 0;
  int32_t slots = 0;
  int32_t experts = 0;
  int32_t n_embd = 0;
  int32_t n_ff = 0;
  const float* shared = nullptr;
  const float* residual = nullptr;
  float* out = nullptr;
  PendingRuns pending;
  float* scratch = nullptr;   // [kExactBlocks][ExactScratchFloats]
  bool starts_early = false;  // as programmatic dependent of Combine; needs sm_90
};

constexpr int kExactBlocks = 128;

// Of a block: sums of one product, hidden values, a token's input and its output.
WL_HOST_DEVICE constexpr int64_t ExactScratchFloats(int64_t n_embd, int64_t n_ff) {
  constexpr int64_t kPad = 128;
  const int64_t widest = n_embd > 2 * (n_ff + kPad) ? n_embd + kPad : 2 * (n_ff + kPad);
  return widest + n_ff + 2 * n_embd;
}

// out = residual + the sum over slots of weight * down(silu(gate(x)) * up(x)) + shared, for the
// pending runs alone, each slot's output in single precision where a half could not hold it or what
// it was made of. Ends at once where nothing is pending. Asynchronous on `stream`; may be captured.
absl::Status RunExactExperts(const ExactExpertsArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
