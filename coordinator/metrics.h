// All counters of a deployment: the one Prometheus registry. Names begin with warpline_.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "proto/stage.pb.h"

namespace warpline {

// What a worker reported last, so that its totals can be added up over restarts.
struct StageCounterTotals {
  v1::StageCounters last;
};

struct EngineGauges {
  int queued = 0;
  int running = 0;
  int slots_used = 0;
  int slots = 0;
  int64_t pages_used = 0;
  int64_t pages = 0;
  uint64_t epoch = 0;
  bool ready = false;
};

// Thread-safe.
class Metrics {
 public:
  Metrics();
  ~Metrics();

  void SetGauges(const EngineGauges& gauges);
  // A Generate or Evaluate call has ended; its outcome is the status code in words.
  void CountRequest(const absl::Status& status);
  void CountPromptTokens(int64_t count);
  void CountGeneratedToken();
  void CountStep(bool is_prompt);
  void ObserveTimeToFirstToken(double seconds);
  void ObserveInterToken(double seconds);
  void CountStaleResult();
  void CountNonFinite();
  void CountSlowClient();
  void CountStageRestart(int stage);
  // Adds what has grown since `totals`, which becomes `counters`.
  void AddStageCounters(int stage, const v1::StageCounters& counters, StageCounterTotals& totals);

  // Prometheus text format.
  std::string Text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warpline
