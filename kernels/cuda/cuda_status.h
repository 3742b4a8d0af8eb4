// CUDA results as absl::Status. Every call is checked: an unchecked one hides which card failed.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace warpline::cuda {

// `what` says what was tried: "allocating 4096 B on device 1". Out of memory is ResourceExhausted,
// a missing driver or card FailedPrecondition, all else Internal.
inline absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  static_cast<void>(cudaGetLastError());  // Lest a later launch reports it.
  const std::string message =
      absl::StrCat(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  switch (error) {
    case cudaErrorMemoryAllocation:
    case cudaErrorStreamCaptureUnsupported:  // an allocation amid a recorded step
      return absl::ResourceExhaustedError(message);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
      return absl::FailedPreconditionError(message);
    default:
      return absl::InternalError(message);
  }
}

// The same after a launch, whose error must be taken away lest the next call reports it.
inline absl::Status LaunchStatus(absl::string_view what) {
  return CudaStatus(cudaGetLastError(), what);
}

}  // namespace warpline::cuda
