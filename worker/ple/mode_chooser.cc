#include "worker/ple/mode_chooser.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"

namespace warpline {
namespace {

// The first measurements follow each other quickly: the one at start may have met a bad moment.
// So do those while another mode is winning.
constexpr double kShortestPauseSeconds = 5;

const char* Name(PleIo mode) { return kPleIoNames[static_cast<int>(mode)]; }

}  // namespace

ModeChooser::ModeChooser(const NgramTable& table, ReadersByMode readers, std::vector<PleIo> modes)
    : readers_(std::move(readers)),
      modes_(std::move(modes)),
      probe_(table, readers_),
      rates_(probe_.Measure()),
      policy_(rates_) {
  LogInfo("n-gram rows: mode=", Name(modes_[current()]), " rows_per_second ", Figures());
}

ModeChooser::~ModeChooser() {
  {
    MutexLock lock(mutex_);
    is_closing_ = true;
    closes_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void ModeChooser::Start(double longest_pause_seconds, OnRates on_rates) {
  if (modes_.size() < 2) return;
  thread_ = std::thread([this, longest_pause_seconds, on_rates = std::move(on_rates)] {
    Loop(longest_pause_seconds, on_rates);
  });
}

void ModeChooser::Loop(double longest_pause_seconds, const OnRates& on_rates) {
  double pause = std::min(kShortestPauseSeconds, longest_pause_seconds);
  while (Pause(pause)) {
    rates_ = probe_.Measure();
    const PleIo before = modes_[policy_.current()];
    if (policy_.Observe(rates_)) {
      ++change_count_;
      LogWarning("n-gram rows: mode changes from ", Name(before), " to ",
                 Name(modes_[policy_.current()]), ", faster in ", ModePolicy::kWinsToChange,
                 " measurements one after another, now rows_per_second ", Figures());
    } else {
      LogDebug("n-gram rows: mode=", Name(before), " rows_per_second ", Figures());
    }
    on_rates(rates_, policy_.current());
    pause = std::min(policy_.wins() > 0 ? kShortestPauseSeconds : 2 * pause, longest_pause_seconds);
  }
}

bool ModeChooser::Pause(double seconds) {
  const SteadyTime end = Now() + std::chrono::duration_cast<SteadyTime::duration>(
                                     std::chrono::duration<double>(seconds));
  MutexLock lock(mutex_);
  while (!is_closing_ && Now() < end) closes_.WaitUntil(mutex_, end);
  return !is_closing_;
}

std::string ModeChooser::Figures() const {
  std::string figures;
  for (size_t i = 0; i < modes_.size(); ++i) {
    absl::StrAppend(&figures, i > 0 ? " " : "", Name(modes_[i]), "=",
                    static_cast<int64_t>(rates_[i]));
  }
  return figures;
}

}  // namespace warpline
