// The messages of one gRPC stream that wait for their turn: gRPC takes one write at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <utility>

#include "base/mutex.h"

namespace warpline {

// Thread-safe and never calls gRPC itself: whoever gets a message from Push or Next starts that
// write, after the lock is gone. A message stays valid until the Next that follows its write.
template <typename Message>
class WriteQueue {
 public:
  // The message to write now, or null while another write is in flight or after Close.
  const Message* Push(Message message) {
    MutexLock lock(mutex_);
    if (closed_) return nullptr;
    messages_.push_back(std::move(message));
    return messages_.size() == 1 ? &messages_.front() : nullptr;
  }

  // The write in flight has ended: the next one, or null.
  const Message* Next() {
    MutexLock lock(mutex_);
    messages_.pop_front();
    return messages_.empty() || closed_ ? nullptr : &messages_.front();
  }

  // Nothing further is written.
  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
  }

  // The one in flight included.
  size_t size() const {
    MutexLock lock(mutex_);
    return messages_.size();
  }

 private:
  mutable Mutex mutex_;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mutex_);  // The front is the write in flight.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace warpline
