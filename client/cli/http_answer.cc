#include "client/cli/http_answer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace warpline {
namespace {

constexpr size_t kMaxHeadBytes = 64 << 10;

absl::Status NoHttp() { return absl::InvalidArgumentError("the answer is no HTTP/1.1"); }

}  // namespace

absl::Status HttpAnswer::Feed(absl::string_view bytes) {
  raw_.append(bytes.data(), bytes.size());
  absl::Status status;
  while (status.ok() && state_ != State::kDone && Advance(status)) {
  }
  return status;
}

absl::Status HttpAnswer::FeedEnd() {
  if (state_ == State::kToEnd) state_ = State::kDone;
  return complete() ? absl::OkStatus()
                    : absl::UnavailableError("the service closed the connection");
}

bool HttpAnswer::Advance(absl::Status& status) {
  std::string line;
  switch (state_) {
    case State::kHead: {
      const size_t end = raw_.find("\r\n\r\n");
      if (end == std::string::npos) {
        if (raw_.size() > kMaxHeadBytes) status = NoHttp();
        return false;
      }
      status = ReadHead(absl::string_view(raw_).substr(0, end));
      raw_.erase(0, end + 4);
      return true;
    }
    case State::kChunkSize:
      if (!TakeLine(line)) return false;
      status = ReadChunkSize(line);
      return true;
    case State::kChunkData:
      if (raw_.empty()) return false;
      TakeData(State::kChunkEnd);
      return true;
    case State::kChunkEnd:
      if (!TakeLine(line)) return false;
      state_ = State::kChunkSize;
      return true;
    case State::kTrailer:
      if (!TakeLine(line)) return false;
      if (line.empty()) state_ = State::kDone;
      return true;
    case State::kCounted:
      if (raw_.empty() && left_ > 0) return false;
      TakeData(State::kDone);
      return true;
    case State::kToEnd:
      body_ += raw_;
      raw_.clear();
      return false;
    case State::kDone:
      return false;
  }
  return false;
}

absl::Status HttpAnswer::ReadHead(absl::string_view head) {
  const size_t blank = head.find(' ');
  if (!absl::StartsWith(head, "HTTP/1.") || blank == absl::string_view::npos ||
      !absl::SimpleAtoi(head.substr(blank + 1, 3), &status_)) {
    return NoHttp();
  }
  state_ = State::kToEnd;
  for (const absl::string_view field : absl::StrSplit(head, "\r\n")) {
    const size_t colon = field.find(':');
    if (colon == absl::string_view::npos) continue;
    const absl::string_view name = field.substr(0, colon);
    const absl::string_view value = absl::StripAsciiWhitespace(field.substr(colon + 1));
    if (absl::EqualsIgnoreCase(name, "Transfer-Encoding") &&
        absl::EqualsIgnoreCase(value, "chunked")) {
      state_ = State::kChunkSize;
    } else if (absl::EqualsIgnoreCase(name, "Content-Length")) {
      if (!absl::SimpleAtoi(value, &left_)) return NoHttp();
      state_ = State::kCounted;
    }
  }
  return absl::OkStatus();
}

absl::Status HttpAnswer::ReadChunkSize(absl::string_view line) {
  const absl::string_view digits = absl::StripAsciiWhitespace(line.substr(0, line.find(';')));
  if (!absl::SimpleHexAtoi(digits, &left_)) return NoHttp();
  state_ = left_ == 0 ? State::kTrailer : State::kChunkData;
  return absl::OkStatus();
}

bool HttpAnswer::TakeLine(std::string& line) {
  const size_t end = raw_.find("\r\n");
  if (end == std::string::npos) return false;
  line = raw_.substr(0, end);
  raw_.erase(0, end + 2);
  return true;
}

void HttpAnswer::TakeData(State after) {
  const size_t count = static_cast<size_t>(std::min<uint64_t>(left_, raw_.size()));
  body_.append(raw_, 0, count);
  raw_.erase(0, count);
  left_ -= count;
  if (left_ == 0) state_ = after;
}

}  // namespace warpline
