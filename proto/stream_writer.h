// The outgoing half of one gRPC stream: messages that wait for their turn, and the end of the
// stream after the last one.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace warpline {

// gRPC takes one write at a time and none after the stream was finished; this class keeps both
// rules while any thread sends. `start_write` and `finish` call gRPC and are called without a lock
// held; the message given to `start_write` stays valid until WriteDone.
template <typename Message>
class StreamWriter {
 public:
  StreamWriter(std::function<void(const Message&)> start_write,
               std::function<void(const absl::Status&)> finish)
      : start_write_(std::move(start_write)), finish_(std::move(finish)) {}

  // False when the stream has ended. Never blocks; what is sent this way is bounded by the
  // protocol.
  bool Send(Message message) { return Enqueue(std::move(message), 0); }

  // As Send, but waits while `most` messages or more are under way.
  bool SendWithin(Message message, size_t most) { return Enqueue(std::move(message), most); }

  // Messages under way, the write in flight included.
  size_t size() const {
    MutexLock lock(mutex_);
    return messages_.size();
  }

  // The write in flight has ended; `ok` as gRPC says.
  void WriteDone(bool ok) {
    const Message* next = nullptr;
    std::optional<absl::Status> end;
    {
      MutexLock lock(mutex_);
      messages_.pop_front();
      if (!ok) {
        closed_ = true;
        drain_ = false;
      }
      if (closed_ && !drain_) messages_.clear();
      if (!messages_.empty()) next = &messages_.front();
      if (next == nullptr) end = std::exchange(end_, std::nullopt);
      room_.NotifyAll();
    }
    if (next != nullptr) start_write_(*next);
    if (end.has_value()) finish_(*end);
  }

  // Ends the stream after what was sent so far (`drain`) or after the write in flight. Only the
  // first call counts.
  void Finish(const absl::Status& status, bool drain) {
    {
      MutexLock lock(mutex_);
      if (finished_) return;
      finished_ = true;
      drain_ = drain && !closed_;
      closed_ = true;
      room_.NotifyAll();
      if (!messages_.empty()) {
        end_ = status;
        return;
      }
    }
    finish_(status);
  }

 private:
  bool Enqueue(Message message, size_t most) {
    const Message* first = nullptr;
    {
      MutexLock lock(mutex_);
      while (most > 0 && !closed_ && messages_.size() >= most) room_.Wait(mutex_);
      if (closed_) return false;
      messages_.push_back(std::move(message));
      if (messages_.size() == 1) first = &messages_.front();
    }
    if (first != nullptr) start_write_(*first);
    return true;
  }

  const std::function<void(const Message&)> start_write_;
  const std::function<void(const absl::Status&)> finish_;
  mutable Mutex mutex_;
  CondVar room_;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mutex_);  // The front is the write in flight.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;           // Nothing further gets in.
  bool drain_ ABSL_GUARDED_BY(mutex_) = false;            // What is inside still goes out.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // Waits for the last write.
};

}  // namespace warpline
