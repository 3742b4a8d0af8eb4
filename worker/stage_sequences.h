// The sequences that are open on a stage.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "worker/sampling_params.h"
#include "worker/step.h"

namespace warpline {

struct StageSequence {
  int kv_slot = 0;
  // Its rows on this stage have a hole: what comes after is dropped until Close.
  bool failed = false;
  // Last stage only.
  SamplingParams sampling;
  int64_t logits_from = -1;
  std::vector<int32_t> history;  // token ids of all positions so far
  int32_t drawn = 0;             // the token drawn last
};

using StageSequences = absl::flat_hash_map<SequenceKey, StageSequence>;

}  // namespace warpline
