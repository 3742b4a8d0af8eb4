#include "coordinator/split_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace warpline {
namespace {

absl::Status CheckStageCount(int layer_count, int stage_count) {
  if (stage_count >= 1 && stage_count <= layer_count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      stage_count, " workers for a model of ", layer_count,
      " layers: every stage needs at least one layer, so 1 to ", layer_count, " workers"));
}

// Bytes before layer i, embedding included: [n_layer + 1], the last with the head.
std::vector<int64_t> BytesBefore(const ModelBytes& bytes) {
  std::vector<int64_t> before = {0};
  for (const int64_t layer : bytes.layers) before.push_back(before.back() + layer);
  for (size_t index = 1; index < before.size(); ++index) before[index] += bytes.embedding;
  before.back() += bytes.head;
  return before;
}

SplitPlan PlanOf(const ModelBytes& bytes, absl::Span<const int> borders) {
  const std::vector<int64_t> before = BytesBefore(bytes);
  SplitPlan plan;
  for (size_t stage = 0; stage + 1 < borders.size(); ++stage) {
    const LayerRange layers{.begin = borders[stage], .end = borders[stage + 1]};
    plan.stages.push_back({layers, before[layers.end] - before[layers.begin]});
  }
  if (plan.stages.size() == 1) plan.stages[0].weight_bytes -= bytes.shared_ends;
  return plan;
}

}  // namespace

absl::StatusOr<SplitPlan> ExplicitSplit(const ModelBytes& bytes, int stage_count,
                                        absl::Span<const int> first_layers) {
  const int layer_count = static_cast<int>(bytes.layers.size());
  WL_RETURN_IF_ERROR(CheckStageCount(layer_count, stage_count));
  if (static_cast<int>(first_layers.size()) != stage_count - 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--layer-split names the first layer of ", first_layers.size(), " later stages, but ",
        stage_count, " workers have ", stage_count - 1, " later stages"));
  }
  std::vector<int> borders = {0};
  for (const int first : first_layers) {
    if (first < 1 || first > layer_count - 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--layer-split: layer ", first, " is outside the valid range 1 to ", layer_count - 1));
    }
    if (first <= borders.back()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--layer-split: layer ", first, " after ", borders.back(),
                       ": the first layers must ascend within 1 to ", layer_count - 1));
    }
    borders.push_back(first);
  }
  borders.push_back(layer_count);
  return PlanOf(bytes, borders);
}

absl::StatusOr<SplitPlan> BalancedSplit(const ModelBytes& bytes, int stage_count) {
  const int layer_count = static_cast<int>(bytes.layers.size());
  WL_RETURN_IF_ERROR(CheckStageCount(layer_count, stage_count));
  const std::vector<int64_t> before = BytesBefore(bytes);
  // least[s][i]: the largest stage's bytes when s stages hold the layers before i; from[s][i]:
  // where the last of them begins.
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::vector<std::vector<int64_t>> least(stage_count + 1,
                                          std::vector<int64_t>(layer_count + 1, kNone));
  std::vector<std::vector<int>> from(stage_count + 1, std::vector<int>(layer_count + 1, 0));
  least[0][0] = 0;
  for (int stage = 1; stage <= stage_count; ++stage) {
    for (int end = stage; end <= layer_count; ++end) {
      for (int begin = stage - 1; begin < end; ++begin) {
        if (least[stage - 1][begin] == kNone) continue;
        const int64_t largest = std::max(least[stage - 1][begin], before[end] - before[begin]);
        if (largest < least[stage][end]) {
          least[stage][end] = largest;
          from[stage][end] = begin;
        }
      }
    }
  }
  std::vector<int> borders = {layer_count};
  for (int stage = stage_count; stage > 0; --stage) {
    borders.insert(borders.begin(), from[stage][borders.front()]);
  }
  return PlanOf(bytes, borders);
}

}  // namespace warpline
