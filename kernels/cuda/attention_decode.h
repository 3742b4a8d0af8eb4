// Attention of decode steps: the keys of a row are cut into parts at absolute positions, one block
// for each part and KV head, then joined in their order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/kernel_choice.h"

namespace warpline::cuda {

constexpr int kMaxPartPages = 8;
constexpr int kMaxDecodeGroup = 16;  // heads of a KV head

// Pages of a part of a row that sees so many positions: the shortest contexts are one part, which
// needs no joining; others are cut finer the shorter they are, so that one row still fills the
// card. A function of nothing else, or a row's bits would depend on its neighbours.
constexpr int kWholeSeen = kMaxPartPages * kPageTokens;
WL_INLINE int PartPages(int seen) {
  if (seen <= kWholeSeen) return kMaxPartPages;
  return seen <= 2048 ? 2 : seen <= 16384 ? 4 : kMaxPartPages;
}

// Most parts of a row that sees at most so many positions; windows begin anywhere.
int64_t MostParts(int64_t seen, bool is_window);

struct DecodeArgs {
  AttentionJob job;
  int32_t max_parts = 0;
  float* values = nullptr;  // [row][kv head][part][16 heads][head_dim], weighted sums
  float2* sums = nullptr;   // [row][kv head][part][16 heads]: largest score, sum of weights
};

// Whether there are kernels for such layers: f16 or int8, head sizes 64, 128 and 256, up to 16
// heads for each KV head.
bool HasDecodeKernel(const KvLayout& layout, int n_head, int n_head_kv);

// Bytes of `values` and `sums` together for so many rows.
int64_t DecodeScratchBytes(int64_t rows, int n_head_kv, int head_dim, int64_t max_parts);

// Raises the limits of all kernels on the current device. FailedPrecondition where it cannot run
// them.
absl::Status PrepareDecode(const DeviceLimits& limits);

// Asynchronous on `stream`.
absl::Status EnqueueDecode(const DecodeArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
