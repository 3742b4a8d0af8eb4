// Figures over rows of logits, fed row by row: perplexity, and how far two sets of logits are
// apart.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace warpline {

// Perplexity of the tokens that follow: exp of minus the mean natural log probability.
class Perplexity {
 public:
  void Add(absl::Span<const float> logits, int32_t next_token);
  int64_t count() const { return count_; }
  double value() const;

 private:
  double log_probability_sum_ = 0;
  int64_t count_ = 0;
};

// `logits` against `expected` rows.
class LogitComparison {
 public:
  void Add(absl::Span<const float> logits, absl::Span<const float> expected);
  // Sum of squared differences / sum of squares of the expected values.
  double nmse() const {
    return expected_squares_ > 0 ? difference_squares_ / expected_squares_ : difference_squares_;
  }
  // Mean over rows of sum p_expected * ln(p_expected / p), in nats.
  double kl_divergence() const {
    return row_count_ > 0 ? kl_sum_ / static_cast<double>(row_count_) : 0;
  }
  // Part of the rows whose largest logit is at the same index.
  double argmax_agreement() const;
  int64_t row_count() const { return row_count_; }

 private:
  double difference_squares_ = 0;
  double expected_squares_ = 0;
  double kl_sum_ = 0;
  int64_t agreeing_ = 0;
  int64_t row_count_ = 0;
};

}  // namespace warpline
