// Chooses the mixer of a layer.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/model_spec.h"
#include "worker/layers/layer.h"
#include "worker/stage_weights.h"

namespace warpline {

// How much state the layers of a stage keep.
struct StatePlan {
  KvType kv_type = KvType::kF16;
  int64_t page_count = 0;
  int slot_count = 0;
  int64_t max_context = 0;  // positions of one sequence
};

absl::StatusOr<std::unique_ptr<Mixer>> LoadMixer(WeightLoader& loader, const ModelSpec& spec,
                                                 int layer, const StatePlan& state,
                                                 Backend& backend);

}  // namespace warpline
