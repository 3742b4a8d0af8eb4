#include "worker/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/error_detail.h"
#include "base/status.h"
#include "kernels/candidate_order.h"

namespace warpline {
namespace {

constexpr float kLargestFloat = std::numeric_limits<float>::max();

// The finaliser of SplitMix64: every bit of the input reaches every bit of the result.
uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
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

bool HasTopK(const SamplingParams& params, int n_vocab) {
  return params.top_k > 0 && params.top_k < n_vocab;
}

bool Truncates(const SamplingParams& params, int n_vocab) {
  return HasTopK(params, n_vocab) || params.top_p < 1 || params.min_p > 0;
}

// Appends an edit for each token of the penalised part of the history.
absl::Status AddPenalties(const SamplingParams& params, absl::Span<const int32_t> history,
                          int n_vocab, std::vector<LogitEdit>& edits) {
  if (params.repetition_penalty == 1 && params.presence_penalty == 0 &&
      params.frequency_penalty == 0) {
    return absl::OkStatus();
  }
  if (params.penalty_window >= 0 && history.size() > static_cast<size_t>(params.penalty_window)) {
    history.remove_prefix(history.size() - params.penalty_window);
  }
  absl::flat_hash_map<int32_t, int32_t> counts;
  for (const int32_t token_id : history) {
    if (token_id < 0 || token_id >= n_vocab) {
      return absl::InvalidArgumentError(absl::StrCat("sampling: history holds token id ", token_id,
                                                     ", the vocabulary has ", n_vocab));
    }
    ++counts[token_id];
  }
  for (const auto& [token_id, count] : counts) {
    edits.push_back({.token_id = token_id, .count = count});
  }
  return absl::OkStatus();
}

// Which sum and how many candidates a draw needs, but for the edits.
CandidateQuery QueryFor(const SamplingParams& params, int n_vocab) {
  CandidateQuery query{.repetition_penalty = params.repetition_penalty,
                       .presence_penalty = params.presence_penalty,
                       .frequency_penalty = params.frequency_penalty};
  if (params.temperature == 0) return query;
  query.most = kMaxCandidates;
  if (HasTopK(params, n_vocab)) {
    query.least = query.most = std::min(params.top_k, kMaxCandidates);
  } else if (!Truncates(params, n_vocab)) {
    query.temperature = params.temperature;
  } else if (params.top_p < 1) {
    query.temperature = 1;
  }
  return query;
}

// A row's tokens in descending order: those that the device named, and the rest from the whole row.
class Ranking {
 public:
  // All must outlive this.
  Ranking(const RowCandidates& row, const FetchLogits& fetch) : row_(row), fetch_(fetch) {}

  // Nothing after the last token and after an error.
  std::optional<Candidate> Next() {
    if (named_ < row_.candidates.size()) return row_.candidates[named_++];
    if (!order_.has_value() && !ReadRow()) return std::nullopt;
    return order_->Next();
  }
  const absl::Status& status() const { return status_; }

 private:
  bool ReadRow() {
    if (!status_.ok()) return false;
    const absl::StatusOr<absl::Span<const float>> logits = fetch_();
    status_ = logits.status();
    if (!status_.ok()) return false;
    order_.emplace(*logits, row_.largest);
    for (size_t i = 0; i < named_; ++i) order_->Next();
    return true;
  }

  const RowCandidates& row_;
  const FetchLogits& fetch_;
  size_t named_ = 0;
  std::optional<CandidateOrder> order_;
  absl::Status status_;
};

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

// What top-k, top-p and min-p leave, in descending order; never empty.
std::vector<Candidate> Truncate(const RowCandidates& row, const SamplingParams& params, int n_vocab,
                                Ranking& ranking) {
  const bool has_top_k = HasTopK(params, n_vocab);
  std::vector<Candidate> top;
  double total = row.weight_sum;  // of what top-k left; needed by top-p only
  if (has_top_k) {
    total = 0;
    while (top.size() < static_cast<size_t>(params.top_k)) {
      const std::optional<Candidate> candidate = ranking.Next();
      if (!candidate) break;
      top.push_back(*candidate);
      total += RelativeWeight(candidate->logit, row.largest, 1);
    }
  }
  std::vector<Candidate> kept;
  double sum = 0;
  for (size_t i = 0;; ++i) {
    std::optional<Candidate> candidate;
    if (!has_top_k) {
      candidate = ranking.Next();
    } else if (i < top.size()) {
      candidate = top[i];
    }
    if (!candidate) break;
    const double weight = RelativeWeight(candidate->logit, row.largest, 1);
    if (weight < params.min_p) break;
    kept.push_back(*candidate);
    sum += weight;
    if (params.top_p < 1 && sum >= params.top_p * total) break;
  }
  return kept;
}

int32_t DrawFrom(const RowCandidates& row, const SamplingParams& params, int n_vocab, double draw,
                 Ranking& ranking) {
  const double temperature = params.temperature;
  if (!Truncates(params, n_vocab)) {
    return WalkTo(draw * row.weight_sum, row.largest, temperature,
                  [&ranking] { return ranking.Next(); });
  }
  const std::vector<Candidate> kept = Truncate(row, params, n_vocab, ranking);
  double total = 0;
  for (const Candidate& candidate : kept) {
    total += RelativeWeight(candidate.logit, row.largest, temperature);
  }
  size_t index = 0;
  return WalkTo(draw * total, row.largest, temperature, [&]() -> std::optional<Candidate> {
    if (index == kept.size()) return std::nullopt;
    return kept[index++];
  });
}

}  // namespace

double UniformDraw(uint64_t seed, int64_t position) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;  // SplitMix64's step
  const uint64_t state = MixBits(seed + kGolden);
  const uint64_t bits = MixBits(state + kGolden * (static_cast<uint64_t>(position) + 1));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

absl::Status PlanDraw(const SamplingParams& params, absl::Span<const int32_t> history, int n_vocab,
                      DrawPlan& plan) {
  WL_RETURN_IF_ERROR(CheckParams(params, static_cast<size_t>(n_vocab)));
  plan.edits.clear();
  for (const auto& [token_id, bias] : params.logit_bias) {
    plan.edits.push_back({.token_id = token_id, .bias = bias});
  }
  WL_RETURN_IF_ERROR(AddPenalties(params, history, n_vocab, plan.edits));
  // Stable: the biases of a token stay in their order and before its penalties.
  std::stable_sort(plan.edits.begin(), plan.edits.end(),
                   [](const LogitEdit& a, const LogitEdit& b) { return a.token_id < b.token_id; });
  plan.query = QueryFor(params, n_vocab);
  plan.query.edits = plan.edits;
  return absl::OkStatus();
}

absl::StatusOr<int32_t> DrawToken(const RowCandidates& row, const SamplingParams& params,
                                  int n_vocab, int64_t position, const FetchLogits& fetch) {
  if (!row.all_finite) {
    return WithDetail(
        absl::InternalError(absl::StrCat("a logit at position ", position, " is not finite")),
        {.code = "numerical_error"});
  }
  if (row.candidates.empty()) {
    return WithDetail(
        absl::InternalError(absl::StrCat("no token is allowed at position ", position)),
        {.code = "no_valid_token"});
  }
  if (params.temperature == 0) return row.candidates.front().token_id;
  Ranking ranking(row, fetch);
  const int32_t token = DrawFrom(row, params, n_vocab, UniformDraw(params.seed, position), ranking);
  WL_RETURN_IF_ERROR(ranking.status());
  return token;
}

}  // namespace warpline
