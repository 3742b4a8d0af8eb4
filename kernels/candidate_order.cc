#include "kernels/candidate_order.h"

#include <algorithm>
#include <limits>

namespace warpline {
namespace {

constexpr double kFirstBandDepth = 4;
constexpr double kLastBandDepth =
    64;  // what lies deeper is one band: a draw hardly ever gets there

// Orders a heap so that its top is the largest logit, of equal ones the lowest id.
bool ComesLater(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit < b.logit : a.token_id > b.token_id;
}

}  // namespace

CandidateOrder::CandidateOrder(absl::Span<const float> logits, float largest)
    : logits_(logits), largest_(largest), upper_(std::numeric_limits<float>::infinity()) {}

std::optional<Candidate> CandidateOrder::Next() {
  if (heap_.empty() && !NextBand()) return std::nullopt;
  std::pop_heap(heap_.begin(), heap_.end(), ComesLater);
  const Candidate top = heap_.back();
  heap_.pop_back();
  return top;
}

bool CandidateOrder::NextBand() {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  while (!finished_ && heap_.empty()) {
    depth_ = depth_ == 0 ? kFirstBandDepth : 2 * depth_;
    const double lower_exact = depth_ <= kLastBandDepth ? largest_ - depth_ : kLowest;
    const float lower = static_cast<float>(std::max<double>(lower_exact, kLowest));
    for (size_t i = 0; i < logits_.size(); ++i) {
      const float logit = logits_[i];
      if (logit >= lower && logit < upper_) {
        heap_.push_back({.logit = logit, .token_id = static_cast<int32_t>(i)});
      }
    }
    upper_ = lower;
    finished_ = lower == kLowest;
  }
  std::make_heap(heap_.begin(), heap_.end(), ComesLater);
  return !heap_.empty();
}

}  // namespace warpline
