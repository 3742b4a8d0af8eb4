#include "kernels/find_candidates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/candidate_order.h"
#include "kernels/logit_edit.h"
#include "kernels/non_finite.h"

namespace warpline {
namespace {

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

void ApplyEdits(const CandidateQuery& query, absl::Span<float> logits) {
  const LogitPenalties penalties{.repetition = query.repetition_penalty,
                                 .presence = query.presence_penalty,
                                 .frequency = query.frequency_penalty};
  for (const LogitEdit& edit : query.edits) {
    float& logit = logits[static_cast<size_t>(edit.token_id)];
    logit = EditedLogit(logit, edit, penalties);
  }
}

absl::Status CheckQuery(const CandidateQuery& query, int64_t n_vocab) {
  if (query.least < 1 || query.most < query.least || query.most > kMaxCandidates) {
    return absl::InvalidArgumentError(
        absl::StrCat(query.least, " to ", query.most, " candidates asked"));
  }
  int32_t last = 0;
  for (const LogitEdit& edit : query.edits) {
    if (edit.token_id < last || edit.token_id >= n_vocab) {
      return absl::InvalidArgumentError(absl::StrCat("an edit of token ", edit.token_id, " after ",
                                                     last, ", vocabulary ", n_vocab));
    }
    last = edit.token_id;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckQueries(const TopCandidatesArgs& args) {
  const auto row_count = static_cast<size_t>(args.logits.row_count);
  if (args.queries.size() != row_count || args.out.size() != row_count) {
    return absl::InvalidArgumentError(absl::StrCat(args.queries.size(), " queries and ",
                                                   args.out.size(), " results for ", row_count,
                                                   " rows of logits"));
  }
  for (const CandidateQuery& query : args.queries) {
    WL_RETURN_IF_ERROR(CheckQuery(query, args.logits.width));
  }
  return absl::OkStatus();
}

void FindCandidates(const CandidateQuery& query, absl::Span<float> logits, RowCandidates& out) {
  out.candidates.clear();
  out.weight_sum = 0;
  out.all_finite = !HasNonFinite(logits);
  if (!out.all_finite) return;
  ApplyEdits(query, logits);
  out.largest = LargestOf(logits);
  if (std::isinf(out.largest)) return;
  if (query.temperature > 0) {
    for (const float logit : logits) {
      out.weight_sum += std::exp((static_cast<double>(logit) - out.largest) / query.temperature);
    }
  }
  if (query.most == 1) {
    const auto first = std::find(logits.begin(), logits.end(), out.largest);
    out.candidates.push_back(
        {.logit = *first, .token_id = static_cast<int32_t>(first - logits.begin())});
    return;
  }
  CandidateOrder order(logits, out.largest);
  // Another pass over the row is made for `least` alone: few draws go beyond the first.
  while (out.candidates.size() < static_cast<size_t>(query.least) ||
         (out.candidates.size() < static_cast<size_t>(query.most) && order.has_ready())) {
    const std::optional<Candidate> candidate = order.Next();
    if (!candidate) return;
    out.candidates.push_back(*candidate);
  }
}

}  // namespace warpline
