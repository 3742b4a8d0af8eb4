// Packed weights back to plain halves, in the order of the file: what the dense products of `off`
// read.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "model/quant.h"

namespace warpline::cuda {

// One packed matrix; device memory.
struct DequantizeArgs {
  QuantType type = QuantType::kF16;
  const uint8_t* packed = nullptr;
  const void* table = nullptr;  // the type's table, see WeightFormat::kTableBytes
  int32_t row_blocks = 0;
  int32_t k = 0;            // padded to a multiple of 128
  bool is_gate_up = false;  // rows interleaved by 8: written as all of gate, then all of up
  uint16_t* out = nullptr;  // halves [16 * row_blocks][k], scaled as the packed weights are
};

// Asynchronous on `stream`. InvalidArgument for types that are no weights.
absl::Status Dequantize(const DequantizeArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
