#include "client/cli/eval_metrics.h"

#include <algorithm>
#include <cmath>

namespace warpline {
namespace {

// ln of the sum of exp of the logits.
double LogSumExp(absl::Span<const float> logits) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - peak);
  return peak + std::log(sum);
}

}  // namespace

void Perplexity::Add(absl::Span<const float> logits, int32_t next_token) {
  log_probability_sum_ += logits[static_cast<size_t>(next_token)] - LogSumExp(logits);
  ++count_;
}

double Perplexity::value() const {
  return std::exp(-log_probability_sum_ / static_cast<double>(count_));
}

void LogitComparison::Add(absl::Span<const float> logits, absl::Span<const float> expected) {
  const double log_sum = LogSumExp(logits);
  const double expected_log_sum = LogSumExp(expected);
  for (size_t index = 0; index < expected.size(); ++index) {
    const double difference = static_cast<double>(logits[index]) - expected[index];
    difference_squares_ += difference * difference;
    expected_squares_ += static_cast<double>(expected[index]) * expected[index];
    const double expected_log = expected[index] - expected_log_sum;
    kl_sum_ += std::exp(expected_log) * (expected_log - (logits[index] - log_sum));
  }
  const auto argmax = [](absl::Span<const float> row) {
    return std::max_element(row.begin(), row.end()) - row.begin();
  };
  if (argmax(logits) == argmax(expected)) ++agreeing_;
  ++row_count_;
}

double LogitComparison::argmax_agreement() const {
  return row_count_ > 0 ? static_cast<double>(agreeing_) / static_cast<double>(row_count_) : 0;
}

}  // namespace warpline
