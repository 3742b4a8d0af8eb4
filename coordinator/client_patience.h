// Why the client of a call no longer waits for its answer.
#pragma once

#include <chrono>

#include "absl/status/status.h"

namespace warpline {

class ClientPatience {
 public:
  // `deadline` is that of a call that has just come.
  explicit ClientPatience(std::chrono::system_clock::time_point deadline)
      : deadline_(deadline), slack_(SlackOf(deadline - std::chrono::system_clock::now())) {}

  // DeadlineExceeded when the call's time is over, Cancelled when the client has left before.
  absl::Status WhyEnded() const {
    if (std::chrono::system_clock::now() >= deadline_ - slack_) {
      return absl::DeadlineExceededError("the client's deadline has passed");
    }
    return absl::CancelledError("the client has left");
  }

 private:
  using Duration = std::chrono::system_clock::duration;

  // The client's own timer ends a call a little before ours: it started earlier, and gRPC rounds
  // the time that it sends up, by at most a hundredth.
  static Duration SlackOf(Duration left) {
    return left / 64 + std::chrono::duration_cast<Duration>(std::chrono::milliseconds(10));
  }

  const std::chrono::system_clock::time_point deadline_;
  const Duration slack_;
};

}  // namespace warpline
