// The vendor's dense matrix product, cuBLAS, loaded at run time: the back end works without it.
// What `off` multiplies with, and what benchmarks compare with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"

namespace warpline::cuda {

// y[row, :] = x[row, :] * transpose(weights), halves with float sums. Device memory.
struct DenseArgs {
  const uint16_t* weights = nullptr;  // [m][k]
  const uint16_t* x = nullptr;        // [rows][k]
  void* y = nullptr;                  // [rows][m], halves or floats
  bool y_is_float = false;
  int m = 0;
  int rows = 0;
  int k = 0;
};

// A cuBLAS handle of one device.
class DenseProduct {
 public:
  DenseProduct();
  DenseProduct(DenseProduct&&) noexcept;
  DenseProduct& operator=(DenseProduct&&) noexcept;
  ~DenseProduct();

  // For the current device. FailedPrecondition, with the loader's words, where no cuBLAS of this
  // CUDA version is found (beside the programs, library path, /usr/local/cuda/lib64).
  absl::Status Open();
  bool is_open() const { return library_ != nullptr; }

  // Asynchronous on `stream`. Must be open. One thread at a time.
  absl::Status Multiply(const DenseArgs& args, cudaStream_t stream) const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace warpline::cuda
