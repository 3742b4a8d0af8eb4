// Why the client of a call no longer waits for its answer.
#pragma once

#include <chrono>

#include "absl/status/status.h"
#include "base/clock.h"

namespace warpline {

class ClientPatience {
 public:
  // `deadline` is that of a call that has just come.
  explicit ClientPatience(SteadyTime deadline) : deadline_(deadline - SlackOf(deadline - Now())) {}

  // DeadlineExceeded when the call's time is over, Cancelled when the client has left before.
  absl::Status WhyEnded() const {
    if (Now() >= deadline_) return absl::DeadlineExceededError("the call's deadline has passed");
    return absl::CancelledError("the client has left");
  }

 private:
  using Duration = SteadyTime::duration;

  // The client's own timer ends a call a little before ours: it started earlier, and gRPC rounds
  // the time that it sends up, by at most a hundredth.
  static Duration SlackOf(Duration left) {
    return left / 64 + std::chrono::duration_cast<Duration>(std::chrono::milliseconds(10));
  }

  const SteadyTime deadline_;  // Less the slack.
};

}  // namespace warpline
