// Chooses the next token from a row of logits. A draw is a pure function of logits, history, seed and position.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/sampling_params.h"

namespace warpline {

// `logits` [n_vocab] is changed (bias and penalties are applied in place). `history` holds the sequence's tokens so far,
// prompt included; `position` is the absolute position that the drawn token will take.
// Errors: Internal with detail code "numerical_error" when a logit is NaN or infinite before the bias is applied,
// "no_valid_token" when the bias leaves none.
absl::StatusOr<int32_t> SampleToken(absl::Span<float> logits, const SamplingParams& params,
                                    absl::Span<const int32_t> history, int64_t position);

}  // namespace warpline
