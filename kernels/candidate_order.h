// Hands out the tokens of a row of logits in descending order, sorting no more of the vocabulary
// than is asked for.
#pragma once

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "kernels/backend.h"

namespace warpline {

// Ties go to the lower id; a logit of -infinity is never handed out. Works through bands of logits
// below the largest: a few tokens near the top decide nearly every draw, so the first band is
// narrow and each further one twice as deep.
class CandidateOrder {
 public:
  // `logits` must outlive this; `largest` is the largest of them, finite.
  CandidateOrder(absl::Span<const float> logits, float largest);
  // The next candidate, or nothing after the last one.
  std::optional<Candidate> Next();
  // Whether Next has one at hand without another pass over the row.
  bool has_ready() const { return !heap_.empty(); }

 private:
  // Collects the next band that holds a token; false when none is left.
  bool NextBand();

  const absl::Span<const float> logits_;
  const float largest_;
  double depth_ = 0;  // the bands so far reach down to largest_ - depth_
  float upper_;       // tokens at or above it were handed out before this band
  bool finished_ = false;
  std::vector<Candidate> heap_;  // what is left of the current band
};

}  // namespace warpline
