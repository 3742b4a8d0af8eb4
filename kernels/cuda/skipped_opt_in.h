// What a launch says when nobody has raised the kernel's shared-memory limit on this device.
#pragma once

#include "absl/status/statusor.h"

namespace warpline::cuda {

// Launches kernels of device `ordinal` that need more than the default limit, without raising it,
// and prints the errors. Whether each was refused, and the device works as before. Other parts of
// the process must not have raised the limits there.
absl::StatusOr<bool> ShowSkippedOptIn(int ordinal);

}  // namespace warpline::cuda
