// Launches that may start while the kernel before them ends (programmatic dependent launch).
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/cuda_status.h"

namespace warpline::cuda {

// One launch of a kernel that takes `args` as its only parameter. Where `is_early`, its blocks may
// start as soon as all blocks of the kernel before it have called LetNextGridStart(); it must call
// WaitForPreviousGrid() before it touches what kernels before it touch. Needs sm_90.
template <typename Args>
absl::Status LaunchEarly(const void* function, dim3 grid, int threads, int shared_bytes,
                         const Args& args, bool is_early, cudaStream_t stream,
                         absl::string_view what) {
  cudaLaunchAttribute early_start = {};
  early_start.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early_start.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &early_start;
  config.numAttrs = is_early ? 1 : 0;
  Args copy = args;
  void* parameters[] = {&copy};
  return CudaStatus(cudaLaunchKernelExC(&config, function, parameters), what);
}

}  // namespace warpline::cuda
