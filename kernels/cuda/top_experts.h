// Which experts a row takes, and how much of each.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"

namespace warpline::cuda {

// All pointers are device memory.
struct TopExpertsArgs {
  const float* logits = nullptr;  // [rows][experts]
  int32_t rows = 0;
  int32_t experts = 0;            // 1 to kMaxExperts
  int32_t used = 0;               // 1 to experts
  bool renormalise = false;       // divide by the sum of the chosen, at least 2^-14
  const float* scales = nullptr;  // [experts] or null: multiplies the weights in the end
  int32_t* expert_ids = nullptr;  // [rows][used], most probable first
  float* weights = nullptr;       // [rows][used]
};

// p = softmax(logits); the `used` largest p, ties to the lower index; NaN loses to any number.
// Asynchronous on `stream`.
absl::Status TopExperts(const TopExpertsArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
