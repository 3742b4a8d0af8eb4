// A first look at the bytes of a request's header, stricter and earlier than the HTTP parser's.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace warpline {

constexpr size_t kMaxHeadBytes = 16 << 10;
constexpr int kMaxHeadFields = 100;
constexpr size_t kMaxTargetBytes = 8 << 10;

struct HeadScan {
  enum class State { kIncomplete, kComplete, kRefused };
  State state = State::kIncomplete;
  size_t skipped = 0;   // empty lines before the request line
  int http_status = 0;  // kRefused: 400, 414, 431 or 505
  std::string message;  // kRefused
};

// Looks at what has arrived of a request. Refuses as soon as the bytes cannot become a good header:
// a broken request line, a folded field, a bare line feed, too many bytes or fields.
HeadScan ScanHead(absl::string_view bytes);

}  // namespace warpline
