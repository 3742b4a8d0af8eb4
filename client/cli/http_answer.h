// One HTTP/1.1 answer as its bytes arrive: the head, then a body that is chunked, of a known
// length, or as long as the connection.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace warpline {

class HttpAnswer {
 public:
  // Appends what `bytes` hold of the body to body(). InvalidArgument when they are no HTTP.
  absl::Status Feed(absl::string_view bytes);
  // The connection has ended. Unavailable when the answer has not.
  absl::Status FeedEnd();

  int status() const { return status_; }  // 0 until the head is there
  bool complete() const { return state_ == State::kDone; }
  // Decoded and not yet taken; the reader erases what it has taken.
  std::string& body() { return body_; }

 private:
  enum class State { kHead, kChunkSize, kChunkData, kChunkEnd, kTrailer, kCounted, kToEnd, kDone };

  // One step over raw_; false when it needs more bytes.
  bool Advance(absl::Status& status);
  absl::Status ReadHead(absl::string_view head);
  absl::Status ReadChunkSize(absl::string_view line);
  // Takes a line off raw_, without its end; false when it is not whole.
  bool TakeLine(std::string& line);
  void TakeData(State after);

  State state_ = State::kHead;
  int status_ = 0;
  uint64_t left_ = 0;  // bytes of the chunk or the body that are still to come
  std::string raw_;
  std::string body_;
};

}  // namespace warpline
