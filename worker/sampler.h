// Chooses the next token from a row of logits. A draw is a pure function of logits, history, seed
// and position.
//
// Order of operations:
//   1. logit bias (-inf forbids a token),
//   2. penalties over the last `penalty_window` tokens of the history: a token that occurs has its
//      logit divided by `repetition_penalty` when positive and multiplied by it otherwise, then
//      `presence_penalty` and `frequency_penalty` times its number of occurrences are subtracted,
//   3. temperature 0: the largest logit wins, ties go to the lower id, and nothing below applies,
//   4. top-k keeps the k largest logits (ties: the lower ids),
//   5. top-p, on the soft-max of what top-k left (temperature not applied yet), keeps the shortest
//      run of most probable tokens whose sum reaches top_p, at least one,
//   6. min-p drops tokens whose probability (same soft-max) is below min_p times the largest,
//   7. soft-max of logit / temperature over the rest, in double, and a draw by inverse distribution
//      function in descending order of probability.
//
// The device edits the row (1, 2), adds up its weights and names its largest tokens, which decide
// nearly every draw; a draw that goes beyond them reads the whole row.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "worker/sampling_params.h"

namespace warpline {

// What the device shall be asked about a row. `query` borrows from `edits`.
struct DrawPlan {
  std::vector<LogitEdit> edits;
  CandidateQuery query;
};

// `history` holds the sequence's tokens so far, prompt included. InvalidArgument for parameters
// outside their range (NaN, a negative temperature, an id outside the vocabulary).
absl::Status PlanDraw(const SamplingParams& params, absl::Span<const int32_t> history, int n_vocab,
                      DrawPlan& plan);

// The row's logits, [n_vocab], edited.
using FetchLogits = std::function<absl::StatusOr<absl::Span<const float>>()>;

// Draws from what the device said about a row that was planned with the same `params`; `position`
// is the absolute position that the drawn token will take. Errors: Internal with detail code
// "numerical_error" when a logit is NaN or infinite before the bias is applied, "no_valid_token"
// when the bias leaves none; and those of `fetch`.
absl::StatusOr<int32_t> DrawToken(const RowCandidates& row, const SamplingParams& params,
                                  int n_vocab, int64_t position, const FetchLogits& fetch);

// The number in [0, 1) that decides a draw: output number `position` of a SplitMix64 generator
// whose state is the mixed seed, its upper 53 bits.
double UniformDraw(uint64_t seed, int64_t position);

}  // namespace warpline
