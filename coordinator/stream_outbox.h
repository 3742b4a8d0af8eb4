// The answers of one server stream that wait for their turn, and the status that ends it.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace warpline {

// Thread-safe and never calls gRPC itself: whoever gets a turn carries it out after the lock is
// gone.
template <typename Message>
class StreamOutbox {
 public:
  // At most one of both: a write to start (the message stays valid until Next), or the status to
  // finish with, which is given once.
  struct Turn {
    const Message* write = nullptr;
    std::optional<absl::Status> finish;
  };

  Turn Push(Message message) {
    MutexLock lock(mutex_);
    if (broken_ || status_.has_value()) return {};
    messages_.push_back(std::move(message));
    return messages_.size() == 1 ? Turn{.write = &messages_.front()} : Turn{};
  }

  // The write in flight has ended. Not `ok`: the client is gone, what waits is dropped.
  Turn Next(bool ok) {
    MutexLock lock(mutex_);
    messages_.pop_front();
    if (!ok) {
      broken_ = true;
      messages_.clear();
    }
    if (!messages_.empty()) return {.write = &messages_.front()};
    return TakeFinish();
  }

  // The stream ends with `status` once all has been written; the first call counts.
  Turn End(absl::Status status) {
    MutexLock lock(mutex_);
    if (status_.has_value()) return {};
    status_ = std::move(status);
    return messages_.empty() ? TakeFinish() : Turn{};
  }

  // The one in flight included.
  size_t size() const {
    MutexLock lock(mutex_);
    return messages_.size();
  }

 private:
  Turn TakeFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!status_.has_value() || finished_) return {};
    finished_ = true;
    return {.finish = status_};
  }

  mutable Mutex mutex_;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mutex_);  // The front is the write in flight.
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace warpline
