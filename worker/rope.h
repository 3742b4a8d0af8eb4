// The rotation angles of a model: how fast each pair of a head turns, with every kind of context
// scaling folded in.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "model/gguf.h"
#include "model/model_spec.h"

namespace warpline {

struct RopeTable {
  bool interleaved = false;
  std::vector<double> inverse_frequency;  // [n_rot / 2]; empty: no rotation
  double magnitude = 1;                   // multiplies cos and sin

  // Borrows: lives as long as this table.
  RopeArgs args() const {
    return {
        .interleaved = interleaved, .inverse_frequency = inverse_frequency, .magnitude = magnitude};
  }
};

// `frequency_factors` [n_rot / 2] divide the angles of their pairs; empty: none.
RopeTable ComputeRope(const RopeSpec& spec, absl::Span<const float> frequency_factors);

// The factors that hold for sequences of up to `configured_context` tokens: rope_freqs.weight where
// the file has it; otherwise, for longrope, rope_factors_long.weight or rope_factors_short.weight;
// otherwise none. InvalidArgument when the tensor is absent or has another size than n_rot / 2.
absl::StatusOr<std::vector<float>> FrequencyFactors(const GgufFile& file, const RopeSpec& spec,
                                                    int64_t configured_context);

}  // namespace warpline
