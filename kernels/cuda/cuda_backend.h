// The CUDA back end's factory. Programs reach it through cuda_library.h.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda_library.h"

namespace warpline::cuda {

// The back end of one device, which becomes the calling thread's. FailedPrecondition where there is
// no driver, no such device, or one that the kernels do not run on.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const CudaOptions& options);

// Of a device that need not be used otherwise; see CudaApi::MemoryOf.
absl::StatusOr<DeviceMemory> DeviceMemoryOf(int device);

}  // namespace warpline::cuda
