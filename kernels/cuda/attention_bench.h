// How fast attention is: TFLOP/s of prompts, microseconds and TB/s of decode steps.
#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/attention.h"

namespace warpline::cuda {

// Prints a table.
absl::Status BenchAttention(PagedAttention& attention);

}  // namespace warpline::cuda
