// The file's blocks become floats, on the device: rows of an embedding, or whole matrices.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/raii.h"
#include "kernels/quant_decode_common.h"
#include "model/quant.h"

namespace warpline::cuda {

// Number tables of the decoders in device memory.
class DeviceGrids {
 public:
  // On the current device.
  static absl::StatusOr<DeviceGrids> Create();
  const QuantGrids& grids() const { return grids_; }

 private:
  DeviceBuffer memory_;
  QuantGrids grids_;
};

// Pointers are device memory.
struct DecodeArgs {
  QuantType type = QuantType::kF32;
  const uint8_t* blocks = nullptr;  // rows of `width` values
  const int32_t* ids = nullptr;     // [row_count] rows to take; null: all in their order
  int64_t row_count = 0;
  int64_t width = 0;
  QuantGrids grids;  // of the device
  float scale = 1;   // then
  float factor = 1;  // two products, rounded one after the other
  int copies = 1;    // of a row, side by side
  float* out = nullptr;
  int64_t out_stride = 0;
};

// Exactly what quant_decode_*.h gives. Asynchronous on `stream`.
absl::Status DecodeRows(const DecodeArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
