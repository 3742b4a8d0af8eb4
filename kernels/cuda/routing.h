// Sorts (token, slot) pairs by expert, on the device: where each expert's rows begin, which row
// each pair gets. See grouped_args.h for the row space.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"

namespace warpline::cuda {

constexpr int kMaxExperts = 1024;

// All pointers are device memory.
struct RoutingArgs {
  const int32_t* expert_ids = nullptr;  // [tokens][slots]
  const float* weights = nullptr;       // [tokens][slots], or null
  int32_t tokens = 0;
  int32_t slots = 0;
  int32_t experts = 0;  // 1 to kMaxExperts

  int32_t* start = nullptr;      // [experts + 1], multiples of 8; the last one ends the row space
  int32_t* count = nullptr;      // [experts]
  int32_t* row_token = nullptr;  // [RowSpaceRows]; -1 for the rows between experts
  int32_t* slot_row = nullptr;   // [tokens][slots]; -1 where the id names no expert
  float* row_weight = nullptr;   // [RowSpaceRows], as row_token; null when `weights` is
  // Both or none: what undoes the scaling of a token's activations, for its rows.
  const float* token_scale = nullptr;  // [tokens]
  float* row_scale = nullptr;          // [RowSpaceRows]; nothing is written between experts
  int32_t* bad_ids = nullptr;          // set to 1 when an id named no expert, else left as it is
  int32_t* scratch = nullptr;          // [kRoutingScratchBytes]
};

// Rows that the row space of so many pairs may take: a multiple of 8.
int64_t RowSpaceRows(int64_t pairs, int64_t experts);

constexpr int kRoutingBlocks = 64;  // at most
constexpr int64_t kRoutingScratchBytes = int64_t{4} * kRoutingBlocks * kMaxExperts;

// Asynchronous on `stream`. Rows of an expert come in the order of (token, slot), so equal input
// gives equal places. InvalidArgument for sizes out of range.
absl::Status Route(const RoutingArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
