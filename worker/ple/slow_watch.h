// Notices when the disk of the n-gram table has become slow, counts it and says so in the log.
#pragma once

#include <cstdint>
#include <iterator>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "worker/ple/ngram_reader.h"

namespace warpline {

// May be used from any thread.
class SlowWatch {
 public:
  // A wait of `slow_seconds` or more is slow.
  explicit SlowWatch(double slow_seconds) : slow_seconds_(slow_seconds) {}

  // A measured rate; the best one for each mode is what reads are compared with.
  void Expect(PleIo mode, double rows_per_second);
  // A read has ended: slow below an eighth of the best rate.
  void SawRead(PleIo mode, int64_t rows, double seconds);
  // The executor has waited.
  void SawWait(PleIo mode, int64_t rows, double seconds);

  uint64_t count() const;

 private:
  void Count(absl::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const double slow_seconds_;
  mutable Mutex mutex_;
  double best_[std::size(kPleIoNames)] ABSL_GUARDED_BY(mutex_) = {};
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t announced_ ABSL_GUARDED_BY(mutex_) = 0;
  SteadyTime next_line_ ABSL_GUARDED_BY(mutex_) = {};
};

}  // namespace warpline
