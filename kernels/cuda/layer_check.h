// A whole expert layer, from routed tokens to combined outputs, compared with double-precision
// loops.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/expert_kernels.h"
#include "kernels/cuda/expert_product.h"
#include "model/quant.h"

namespace warpline::cuda {

struct LayerCase {
  QuantType gate = QuantType::kF16;
  QuantType up = QuantType::kF16;
  QuantType down = QuantType::kF16;
  StepKind kind = StepKind::kPrompt;
  int tokens = 0;
  bool x_is_half = false;  // of prompts; decode steps always take halves
  absl::optional<Policy> policy;
};

struct LayerResult {
  double max_error = 0;
  double max_reference = 0;
  uint64_t hash = 0;          // of all output bits
  bool is_repeatable = true;  // the same bits when run again, and from a graph
  bool is_finite = true;
};

// Runs 8 experts, 4 of a token, 2,048 wide, n_ff 768, with random operands.
absl::StatusOr<LayerResult> CheckLayer(const ExpertKernels& kernels, const LayerCase& layer_case);

// Of max |ref|: hidden values and the outputs of experts are rounded to halves on the way.
constexpr double kLayerBound = 2e-3;

}  // namespace warpline::cuda
