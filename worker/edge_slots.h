// The credits of an outgoing edge: which of its slots may be filled now.
#pragma once

#include <cstdint>
#include <deque>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace warpline {

// Slots are used in turn and come back in the same order. The executor thread acquires and commits,
// gRPC threads acknowledge and break.
class EdgeCredits {
 public:
  explicit EdgeCredits(int slot_count) : slot_count_(slot_count) {}

  // Waits until the next slot is free and gives its index; the same one again until Commit. The
  // status of Break once the edge is lost.
  absl::StatusOr<int> Acquire();
  // The acquired slot travels with step `step_id`.
  void Commit(uint64_t step_id);
  // The receiver gives back its oldest slot. InvalidArgument when that is another one.
  absl::Status Acknowledge(int slot, uint64_t step_id);
  // The edge is lost: wakes Acquire for good. The first status stays.
  void Break(const absl::Status& status);

 private:
  const int slot_count_;
  Mutex mutex_;
  CondVar changed_;
  int next_slot_ ABSL_GUARDED_BY(mutex_) = 0;
  int oldest_slot_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<uint64_t> in_flight_ ABSL_GUARDED_BY(mutex_);  // Step ids, the oldest first.
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace warpline
