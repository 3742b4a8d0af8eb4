// The split plan: which layers each stage holds. Pure functions over the model's byte counts.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/layer_range.h"
#include "model/model_spec.h"

namespace warpline {

struct StagePlan {
  LayerRange layers;
  int64_t weight_bytes = 0;  // Embedding on the first and head on the last stage included.
};

struct SplitPlan {
  std::vector<StagePlan> stages;  // In order, covering [0, n_layer) without gap or overlap.
};

// `first_layers` holds the first layer of each later stage (--layer-split). InvalidArgument, with
// the valid range, unless there are stage_count - 1 of them, ascending, within [1, n_layer - 1].
absl::StatusOr<SplitPlan> ExplicitSplit(const ModelBytes& bytes, int stage_count,
                                        absl::Span<const int> first_layers);

// The split whose largest stage has the fewest bytes; of several, the one whose earlier stages are
// smaller. InvalidArgument when there are more stages than layers.
absl::StatusOr<SplitPlan> BalancedSplit(const ModelBytes& bytes, int stage_count);

}  // namespace warpline
