// A device fault on purpose, for the test of what a service does then. Only builds that are
// configured with WARPLINE_FAULT_INJECTION have one.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/raii.h"

namespace warpline::cuda {

// Counts the steps of the first stage on its device, those that are replayed too, and executes a
// trap in step WARPLINE_FAULT_INJECTION.
class FaultInjection {
 public:
#ifdef WARPLINE_FAULT_INJECTION
  // On the current device.
  static absl::StatusOr<FaultInjection> Create();
  // To be enqueued once a step; may be recorded.
  absl::Status CountStep(cudaStream_t stream) const;

 private:
  DeviceBuffer steps_;
#else
  static absl::StatusOr<FaultInjection> Create() { return FaultInjection(); }
  absl::Status CountStep(cudaStream_t /*stream*/) const { return absl::OkStatus(); }
#endif
};

}  // namespace warpline::cuda
