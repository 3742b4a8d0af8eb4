// Puts a service under load over HTTP and takes the time of every token at its arrival: many
// streams, one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/clock.h"

namespace warpline {

struct HttpTarget {
  std::string host;
  std::string port;
  std::string api_key;  // empty: none is sent
};

// From "http://host:port" (an IPv6 address in brackets, port 80 when absent).
absl::StatusOr<HttpTarget> ParseHttpUrl(absl::string_view url);

// Tokens that came in one event.
struct TokenArrival {
  SteadyTime time;
  int count = 0;
};

// One streamed completion.
struct TokenStream {
  SteadyTime begin;  // just before its request was sent
  std::vector<TokenArrival> arrivals;
  int64_t prompt_count = -1;  // these two as the service counts
  int64_t cached_count = -1;

  int64_t token_count() const;
};

// What the events of a stream say, read line by line.
class TokenStreamReader {
 public:
  // Takes the whole lines off `body`, all of which arrived at `time`. An event that tells of an
  // error is an error.
  absl::Status Read(std::string& body, SteadyTime time);
  bool done() const { return done_; }  // "[DONE]" was there
  TokenStream& stream() { return stream_; }

 private:
  absl::Status ReadEvent(absl::string_view data, SteadyTime time);

  TokenStream stream_;
  bool done_ = false;
};

// The message of an answer that is no success: that of its JSON error when there is one.
absl::Status AnswerError(int http_status, absl::string_view body);

// Used by one thread. SIGINT and SIGTERM, which must be blocked, end a call with Cancelled and stay
// pending; Unavailable when the service cannot be reached, closes a connection early, or sends
// nothing for `timeout_seconds`.
class LoadClient {
 public:
  LoadClient(HttpTarget target, int timeout_seconds)
      : target_(std::move(target)), timeout_seconds_(timeout_seconds) {}

  // The body that GET `path` answers.
  absl::StatusOr<std::string> Get(absl::string_view path) const;
  // POSTs every body to /v1/completions at once and reads all streams to their ends.
  absl::StatusOr<std::vector<TokenStream>> Complete(absl::Span<const std::string> bodies) const;

 private:
  HttpTarget target_;
  int timeout_seconds_;
};

}  // namespace warpline
