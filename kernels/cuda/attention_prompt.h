// Attention of prompts by warpgroup products: 128 pairs of token and head of one KV head against
// blocks of whole pages at absolute positions, the last block first.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/kernel_choice.h"

namespace warpline::cuda {

// One sequence of a step.
struct PromptArgs {
  AttentionJob job;                // the cache's type is f16
  const int32_t* pages = nullptr;  // of the sequence; null: page i is i
  int32_t first_row = 0;           // of the step
  int32_t row_count = 0;
  int32_t first_position = 0;
};

// Whether there are kernels for such layers: f16 or int8, head sizes 64, 128 and 256.
bool HasPromptKernel(const KvLayout& layout);

// Raises the limits of all kernels on the current device. FailedPrecondition where it cannot run
// them.
absl::Status PreparePrompt(const DeviceLimits& limits);

// Asynchronous on `stream`.
absl::Status EnqueuePrompt(const PromptArgs& args, cudaStream_t stream);

// The pages [first_page, page_count) of a sequence in an int8 cache as halves: page i of the
// sequence becomes page i of `out`, whose layout is that of an f16 cache.
struct ExpandArgs {
  KvView cache;
  const int32_t* pages = nullptr;
  int32_t first_page = 0;
  int32_t page_count = 0;
  KvView out;
};

// Asynchronous on `stream`.
absl::Status ExpandPages(const ExpandArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
