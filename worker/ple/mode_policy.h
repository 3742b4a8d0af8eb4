// Which of several ways to read is used, decided from repeated measurements.
#pragma once

#include <cstddef>

#include "absl/types/span.h"

namespace warpline {

// One measurement is a bad judge: a disk has its moments. So a way in use is only given up when the
// same other one was clearly faster in several measurements one after another.
class ModePolicy {
 public:
  static constexpr double kClearlyFaster = 1.2;
  static constexpr int kWinsToChange = 3;

  // `rates`, here and below: rows per second of each way, 0 for one that failed. Takes the fastest.
  explicit ModePolicy(absl::Span<const double> rates);

  size_t current() const { return current_; }
  // A later measurement. True when `current` has changed.
  bool Observe(absl::Span<const double> rates);
  // Measurements in which the present challenger has won, one after another.
  int wins() const { return wins_; }

 private:
  size_t current_;
  size_t challenger_;
  int wins_ = 0;
};

// The middle one; of an even number, the lower of the two in the middle. `values` is not empty.
double Median(absl::Span<const double> values);

}  // namespace warpline
