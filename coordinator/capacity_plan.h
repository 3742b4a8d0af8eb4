// How much cache a deployment gets: the longest sequence, the slots, the KV pages. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/split_plan.h"
#include "model/model_spec.h"
#include "model/state_bytes.h"
#include "proto/stage.pb.h"

namespace warpline {

CacheFormat FormatOf(v1::KvCacheType kv_type);

// What a page of 64 tokens and what a running sequence take over the layers of a stage.
StateBytes BytesOfState(const ModelSpec& spec, const LayerRange& layers, v1::KvCacheType kv_type);

struct CapacityArgs {
  int64_t context = 0;                       // tokens of the longest sequence, as configured
  int slot_count = 1;                        // most running sequences
  int64_t page_bytes = 0;                    // of one page over all stages of this machine
  int64_t slot_bytes = 0;                    // of one running sequence beside its pages
  std::optional<int64_t> cache_bytes_limit;  // memory for caches of this machine; none: not known
};

struct CapacityPlan {
  int64_t context = 0;             // lowered when not even one sequence would fit
  int64_t configured_context = 0;  // before that
  int slot_count = 1;
  int64_t page_count = 0;
};

// slot_count times the context, or what the limit allows. FailedPrecondition, with both numbers,
// when not one page fits beside the slots.
absl::StatusOr<CapacityPlan> PlanCapacity(const CapacityArgs& args);

// Memory of this machine, or of our control group where that is less, that can be had without
// swapping. None when the system does not say.
std::optional<int64_t> AvailableMemoryBytes();

}  // namespace warpline
