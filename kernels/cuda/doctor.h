// The examination of all devices that `warpline doctor` prints.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_library.h"

namespace warpline::cuda {

// Name, uuid, memory, limits and versions of each device, what its self-check says of each tensor
// type, and what was replaced. FailedPrecondition where no driver or no device is.
absl::StatusOr<DoctorReport> ExamineDevices();

}  // namespace warpline::cuda
