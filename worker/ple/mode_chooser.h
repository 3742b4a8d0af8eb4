// Decides by measuring how the n-gram table is read, at start and again while it is being read.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "worker/ple/mode_policy.h"
#include "worker/ple/mode_probe.h"
#include "worker/ple/ngram_reader.h"
#include "worker/ple/row_loader.h"

namespace warpline {

class ModeChooser {
 public:
  // Measures once, logs the figures and chooses. `readers` are for measuring alone, one for each of
  // `modes`. `table` must outlive the chooser.
  ModeChooser(const NgramTable& table, ReadersByMode readers, std::vector<PleIo> modes);
  ~ModeChooser();

  size_t current() const { return policy_.current(); }       // Before Start.
  absl::Span<const double> rates() const { return rates_; }  // Before Start.

  // From now on measures again, about 0.2 s of reading after a pause of `longest_pause_seconds` at
  // most. `on_rates` gets what was measured and the mode chosen, an index into `modes`, on the
  // chooser's thread. With one mode there is nothing to choose and nothing happens.
  using OnRates = std::function<void(absl::Span<const double> rates, size_t mode)>;
  void Start(double longest_pause_seconds, OnRates on_rates);

  uint64_t change_count() const { return change_count_; }

 private:
  void Loop(double longest_pause_seconds, const OnRates& on_rates);
  // False when closing.
  bool Pause(double seconds);
  // "direct=81000 mmap=64000"
  std::string Figures() const;

  const ReadersByMode readers_;
  const std::vector<PleIo> modes_;
  ModeProbe probe_;
  std::vector<double> rates_;
  ModePolicy policy_;
  std::atomic<uint64_t> change_count_{0};
  Mutex mutex_;
  CondVar closes_;
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace warpline
