#include "kernels/cuda/fault_injection.h"

#include "base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace warpline::cuda {
namespace {

__global__ void CountOrTrap(int* steps) {
  if (++*steps == WARPLINE_FAULT_INJECTION) asm volatile("trap;");
}

}  // namespace

absl::StatusOr<FaultInjection> FaultInjection::Create() {
  FaultInjection faults;
  WL_ASSIGN_OR_RETURN(faults.steps_, DeviceBuffer::Create(sizeof(int)));
  WL_RETURN_IF_ERROR(
      CudaStatus(cudaMemset(faults.steps_.as(), 0, sizeof(int)), "clearing the count of steps"));
  return faults;
}

absl::Status FaultInjection::CountStep(cudaStream_t stream) const {
  CountOrTrap<<<1, 1, 0, stream>>>(steps_.as<int>());
  return LaunchStatus("counting a step");
}

}  // namespace warpline::cuda
