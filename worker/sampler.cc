#include "worker/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/error_detail.h"
#include "base/status.h"
#include "worker/candidate_order.h"
#include "worker/non_finite.h"

namespace warpline {
namespace {

constexpr float kLargestFloat = std::numeric_limits<float>::max();

// The finaliser of SplitMix64: every bit of the input reaches every bit of the result.
uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The largest of `values`, which hold no NaN; -infinity when they are all that.
float LargestOf(absl::Span<const float> values) {
  std::array<float, 16> best;
  best.fill(-std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + best.size() <= values.size(); i += best.size()) {
    for (size_t lane = 0; lane < best.size(); ++lane) {
      best[lane] = values[i + lane] > best[lane] ? values[i + lane] : best[lane];
    }
  }
  float largest = *std::max_element(best.begin(), best.end());
  for (; i < values.size(); ++i) largest = std::max(largest, values[i]);
  return largest;
}

absl::Status CheckParams(const SamplingParams& params, size_t n_vocab) {
  const auto refuse = [](absl::string_view name, double value) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling: ", name, " ", value, " is out of range"));
  };
  // Written so that NaN fails each of them.
  if (!(params.temperature >= 0 && params.temperature <= kLargestFloat)) {
    return refuse("temperature", params.temperature);
  }
  if (!(params.top_p >= 0 && params.top_p <= 1)) return refuse("top_p", params.top_p);
  if (!(params.min_p >= 0 && params.min_p <= 1)) return refuse("min_p", params.min_p);
  if (!(params.repetition_penalty > 0 && params.repetition_penalty <= kLargestFloat)) {
    return refuse("repetition_penalty", params.repetition_penalty);
  }
  if (!std::isfinite(params.presence_penalty))
    return refuse("presence_penalty", params.presence_penalty);
  if (!std::isfinite(params.frequency_penalty))
    return refuse("frequency_penalty", params.frequency_penalty);
  for (const auto& [token_id, bias] : params.logit_bias) {
    if (token_id < 0 || static_cast<size_t>(token_id) >= n_vocab)
      return refuse("logit_bias id", token_id);
    if (!(bias <= kLargestFloat)) return refuse("logit_bias value", bias);
  }
  return absl::OkStatus();
}

// Sums stay finite, so that only a bias of -infinity can forbid a token.
float ClampToFinite(double logit) {
  return static_cast<float>(std::clamp<double>(logit, -kLargestFloat, kLargestFloat));
}

void ApplyBias(const SamplingParams& params, absl::Span<float> logits) {
  for (const auto& [token_id, bias] : params.logit_bias) {
    float& logit = logits[token_id];
    if (std::isinf(bias) || std::isinf(logit)) {
      logit = -std::numeric_limits<float>::infinity();
    } else {
      logit = ClampToFinite(static_cast<double>(logit) + bias);
    }
  }
}

absl::Status ApplyPenalties(const SamplingParams& params, absl::Span<const int32_t> history,
                            absl::Span<float> logits) {
  if (params.repetition_penalty == 1 && params.presence_penalty == 0 &&
      params.frequency_penalty == 0) {
    return absl::OkStatus();
  }
  if (params.penalty_window >= 0 && history.size() > static_cast<size_t>(params.penalty_window)) {
    history.remove_prefix(history.size() - params.penalty_window);
  }
  absl::flat_hash_map<int32_t, int64_t> counts;
  for (const int32_t token_id : history) {
    if (token_id < 0 || static_cast<size_t>(token_id) >= logits.size()) {
      return absl::InvalidArgumentError(absl::StrCat("sampling: history holds token id ", token_id,
                                                     ", the vocabulary has ", logits.size()));
    }
    ++counts[token_id];
  }
  for (const auto& [token_id, count] : counts) {
    float& logit = logits[token_id];
    if (std::isinf(logit)) continue;
    const double penalty = params.repetition_penalty;
    const double scaled = logit > 0 ? logit / penalty : logit * penalty;
    logit = ClampToFinite(scaled - params.presence_penalty -
                          params.frequency_penalty * static_cast<double>(count));
  }
  return absl::OkStatus();
}

// exp((logit - largest) / temperature), in [0, 1].
double RelativeWeight(float logit, float largest, double temperature) {
  return std::exp((static_cast<double>(logit) - largest) / temperature);
}

// Walks `next` (descending candidates) until the weights' sum exceeds `target`; the last one when
// rounding keeps the sum below it.
template <typename NextCandidate>
int32_t WalkTo(double target, float largest, double temperature, NextCandidate next) {
  double sum = 0;
  int32_t chosen = -1;
  while (const std::optional<Candidate> candidate = next()) {
    chosen = candidate->token_id;
    sum += RelativeWeight(candidate->logit, largest, temperature);
    if (sum > target) break;
  }
  return chosen;
}

double SumOfWeights(absl::Span<const float> logits, float largest, double temperature) {
  double sum = 0;
  for (const float logit : logits) sum += RelativeWeight(logit, largest, temperature);
  return sum;
}

// What top-k, top-p and min-p leave, in descending order; never empty.
std::vector<Candidate> Truncate(absl::Span<const float> logits, float largest,
                                const SamplingParams& params) {
  CandidateOrder order(logits, largest);
  const bool has_top_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size();
  std::vector<Candidate> top;
  double total = 0;  // of the weights of what top-k left; needed by top-p only
  if (has_top_k) {
    while (top.size() < static_cast<size_t>(params.top_k)) {
      const std::optional<Candidate> candidate = order.Next();
      if (!candidate) break;
      top.push_back(*candidate);
      total += RelativeWeight(candidate->logit, largest, 1);
    }
  } else if (params.top_p < 1) {
    total = SumOfWeights(logits, largest, 1);
  }
  std::vector<Candidate> kept;
  double sum = 0;
  for (size_t i = 0;; ++i) {
    std::optional<Candidate> candidate;
    if (!has_top_k) {
      candidate = order.Next();
    } else if (i < top.size()) {
      candidate = top[i];
    }
    if (!candidate) break;
    const double weight = RelativeWeight(candidate->logit, largest, 1);
    if (weight < params.min_p) break;
    kept.push_back(*candidate);
    sum += weight;
    if (params.top_p < 1 && sum >= params.top_p * total) break;
  }
  return kept;
}

}  // namespace

double UniformDraw(uint64_t seed, int64_t position) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;  // SplitMix64's step
  const uint64_t state = MixBits(seed + kGolden);
  const uint64_t bits = MixBits(state + kGolden * (static_cast<uint64_t>(position) + 1));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

absl::StatusOr<int32_t> SampleToken(absl::Span<float> logits, const SamplingParams& params,
                                    absl::Span<const int32_t> history, int64_t position) {
  WL_RETURN_IF_ERROR(CheckParams(params, logits.size()));
  if (HasNonFinite(logits)) {
    return WithDetail(
        absl::InternalError(absl::StrCat("a logit at position ", position, " is not finite")),
        {.code = "numerical_error"});
  }
  ApplyBias(params, logits);
  WL_RETURN_IF_ERROR(ApplyPenalties(params, history, logits));
  const float largest = LargestOf(logits);
  if (std::isinf(largest)) {
    return WithDetail(
        absl::InternalError(absl::StrCat("no token is allowed at position ", position)),
        {.code = "no_valid_token"});
  }
  if (params.temperature == 0) {
    return static_cast<int32_t>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
  }
  const double temperature = params.temperature;
  const double draw = UniformDraw(params.seed, position);
  const bool truncates = (params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size()) ||
                         params.top_p < 1 || params.min_p > 0;
  if (!truncates) {
    CandidateOrder order(logits, largest);
    return WalkTo(draw * SumOfWeights(logits, largest, temperature), largest, temperature,
                  [&order] { return order.Next(); });
  }
  const std::vector<Candidate> kept = Truncate(logits, largest, params);
  double total = 0;
  for (const Candidate& candidate : kept)
    total += RelativeWeight(candidate.logit, largest, temperature);
  size_t index = 0;
  return WalkTo(draw * total, largest, temperature, [&]() -> std::optional<Candidate> {
    if (index == kept.size()) return std::nullopt;
    return kept[index++];
  });
}

}  // namespace warpline
