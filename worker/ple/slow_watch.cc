#include "worker/ple/slow_watch.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace warpline {
namespace {

constexpr double kSlowFactor = 8;
constexpr int64_t kJudgedRows = 256;  // Fewer say more about the disk's latency than its rate.
constexpr std::chrono::seconds kLinePause{10};

const char* Name(PleIo mode) { return kPleIoNames[static_cast<int>(mode)]; }

}  // namespace

void SlowWatch::Expect(PleIo mode, double rows_per_second) {
  MutexLock lock(mutex_);
  double& best = best_[static_cast<int>(mode)];
  best = std::max(best, rows_per_second);
}

void SlowWatch::SawRead(PleIo mode, int64_t rows, double seconds) {
  if (rows < kJudgedRows) return;
  MutexLock lock(mutex_);
  const double best = best_[static_cast<int>(mode)];
  const double rate = static_cast<double>(rows) / std::max(seconds, 1e-9);
  if (rate * kSlowFactor >= best) return;
  Count(absl::StrCat("rows_per_second=", static_cast<int64_t>(rate),
                     " best=", static_cast<int64_t>(best), " mode=", Name(mode)));
}

void SlowWatch::SawWait(PleIo mode, int64_t rows, double seconds) {
  if (seconds < slow_seconds_) return;
  MutexLock lock(mutex_);
  Count(absl::StrCat("waited_seconds=", seconds, " rows=", rows, " mode=", Name(mode)));
}

void SlowWatch::Count(absl::string_view what) {
  ++count_;
  if (Now() < next_line_) return;
  LogWarning("n-gram rows: the disk is slow, prompts take longer: ", what,
             " slow_reads=", count_ - announced_);
  announced_ = count_;
  next_line_ = Now() + kLinePause;
}

uint64_t SlowWatch::count() const {
  MutexLock lock(mutex_);
  return count_;
}

}  // namespace warpline
