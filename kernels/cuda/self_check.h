// What a device proves of itself before it serves: every kernel that may be chosen computes a small
// product right.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/expert_kernels.h"
#include "model/quant.h"

namespace warpline::cuda {

// Runs each kernel of these types on random operands against double-precision loops, tile size by
// tile size. One that fails, or cannot be launched, takes its policy out of kernels.choices(), with
// the reason; FailedPrecondition where an operation then has none left. Internal when the device
// itself is lost, after which the process must end.
absl::Status SelfCheck(ExpertKernels& kernels, absl::Span<const QuantType> types);

// One line for the log: "device 0 NVIDIA H200 sm_90: IQ3_XXS: wgmma; fallbacks: none".
std::string CapabilityLine(const ExpertKernels& kernels);

}  // namespace warpline::cuda
