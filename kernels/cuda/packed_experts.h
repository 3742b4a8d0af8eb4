// The weights of one matrix of all experts, packed in device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/raii.h"
#include "kernels/quant_decode_common.h"
#include "model/quant.h"

namespace warpline::cuda {

// A gate and an up matrix of one type are one packed matrix, interleaved by 8 rows; its n_ff is
// padded with zero rows to a multiple of 128, so that what it writes is whole tiles for `down`.
struct PackedExperts {
  QuantType type = QuantType::kF16;
  bool is_gate_up = false;
  int32_t experts = 0;
  int32_t rows = 0;         // live output columns: n_ff of gate and up, else the matrix's rows
  int32_t out_columns = 0;  // `rows`, padded for gate and up
  int32_t k = 0;            // padded to a multiple of 128
  int32_t row_blocks = 0;
  int64_t expert_bytes = 0;
  float weight_scale = 1;  // undoes the power of two of types with a wide range
  DeviceBuffer data;
};

// GGUF blocks of one matrix of all experts.
struct RawExperts {
  QuantType type = QuantType::kF16;
  int32_t experts = 0;
  int32_t rows = 0;
  int32_t k = 0;
  const uint8_t* blocks = nullptr;  // expert e from e * expert_bytes on
  int64_t expert_bytes = 0;         // at least rows * RowBytes(type, k)
  // Given where `blocks` is memory of the current device: the decoders' tables there.
  const QuantGrids* device_grids = nullptr;
};

// Packs on the current device. Blocks of the host come in slabs, so that little memory is needed
// beside the result, and have been packed when the call returns; those of the device are needed
// until the stream has come so far. InvalidArgument where k is no multiple of the type's block.
absl::StatusOr<PackedExperts> PackExperts(const RawExperts& raw, cudaStream_t stream);
// The same for gate and up of one type and shape, as one matrix.
absl::StatusOr<PackedExperts> PackGateUp(const RawExperts& gate, const RawExperts& up,
                                         cudaStream_t stream);

}  // namespace warpline::cuda
