#include "worker/ple/mode_policy.h"

#include <algorithm>
#include <vector>

namespace warpline {
namespace {

size_t Fastest(absl::Span<const double> rates) {
  return std::max_element(rates.begin(), rates.end()) - rates.begin();
}

}  // namespace

ModePolicy::ModePolicy(absl::Span<const double> rates)
    : current_(Fastest(rates)), challenger_(current_) {}

bool ModePolicy::Observe(absl::Span<const double> rates) {
  const size_t fastest = Fastest(rates);
  if (fastest == current_ || rates[fastest] <= kClearlyFaster * rates[current_]) {
    wins_ = 0;
    return false;
  }
  wins_ = fastest == challenger_ ? wins_ + 1 : 1;
  challenger_ = fastest;
  if (wins_ < kWinsToChange) return false;
  current_ = fastest;
  wins_ = 0;
  return true;
}

double Median(absl::Span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted[(sorted.size() - 1) / 2];
}

}  // namespace warpline
