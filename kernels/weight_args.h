// The check of a weight's arguments that all back ends share.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace warpline {

// InvalidArgument unless type, shape, bytes and scales fit together.
absl::Status CheckWeightArgs(const WeightArgs& args);

}  // namespace warpline
