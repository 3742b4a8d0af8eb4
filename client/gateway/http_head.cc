#include "client/gateway/http_head.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace warpline {
namespace {

constexpr size_t kMaxMethodBytes = 20;
constexpr size_t kMaxEmptyLines = 4;

HeadScan Refused(int http_status, std::string message) {
  return {.state = HeadScan::State::kRefused,
          .http_status = http_status,
          .message = std::move(message)};
}

// The beginning of a request line as far as it is there: a method in capitals, then a blank.
bool MethodCanBegin(absl::string_view line) {
  const size_t blank = std::min(line.find(' '), line.size());
  if (blank > kMaxMethodBytes || (blank == 0 && !line.empty())) return false;
  return std::all_of(line.begin(), line.begin() + blank,
                     [](char c) { return absl::ascii_isupper(static_cast<unsigned char>(c)); });
}

HeadScan CheckRequestLine(absl::string_view line) {
  const size_t first = line.find(' ');
  const size_t second = first == absl::string_view::npos ? first : line.find(' ', first + 1);
  if (second == absl::string_view::npos) return Refused(400, "the request line is malformed");
  const absl::string_view target = line.substr(first + 1, second - first - 1);
  const absl::string_view version = line.substr(second + 1);
  if (target.size() > kMaxTargetBytes) return Refused(414, "the request's target is too long");
  const auto graphic = [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); };
  if (target.empty() || !std::all_of(target.begin(), target.end(), graphic)) {
    return Refused(400, "the request's target is malformed");
  }
  if (version == "HTTP/1.1" || version == "HTTP/1.0") return {};
  if (version == "HTTP/2.0") return Refused(400, "HTTP/2 is not spoken here");
  return Refused(400, "the request line has no HTTP/1.0 or HTTP/1.1");
}

// The lines after the request line, as far as they are complete.
HeadScan CheckFields(absl::string_view lines) {
  int count = 0;
  for (size_t end = lines.find('\n'); end != absl::string_view::npos; end = lines.find('\n')) {
    absl::string_view line = lines.substr(0, end);
    lines.remove_prefix(end + 1);
    if (line.empty() || line.back() != '\r') return Refused(400, "a header line ends badly");
    line.remove_suffix(1);
    if (line.empty()) return {.state = HeadScan::State::kComplete};
    if (line.front() == ' ' || line.front() == '\t') {
      return Refused(400, "folded header lines are not accepted");
    }
    if (line.find('\r') != absl::string_view::npos || line.find('\0') != absl::string_view::npos) {
      return Refused(400, "a header line has a forbidden character");
    }
    const size_t colon = line.find(':');
    if (colon == absl::string_view::npos || colon == 0 ||
        absl::ascii_isspace(static_cast<unsigned char>(line[colon - 1]))) {
      return Refused(400, "a header line is malformed");
    }
    if (++count > kMaxHeadFields) {
      return Refused(431, absl::StrCat("more than ", kMaxHeadFields, " header fields"));
    }
  }
  return {};
}

}  // namespace

HeadScan ScanHead(absl::string_view bytes) {
  size_t skipped = 0;
  while (skipped < 2 * kMaxEmptyLines && absl::StartsWith(bytes.substr(skipped), "\r\n")) {
    skipped += 2;
  }
  bytes.remove_prefix(skipped);
  if (bytes.empty() || bytes == "\r") return {.skipped = skipped};
  const absl::string_view head = bytes.substr(0, kMaxHeadBytes);
  const size_t end = head.find('\n');
  if (end == absl::string_view::npos) {
    if (!MethodCanBegin(head)) return Refused(400, "this is no HTTP request");
    if (bytes.size() > kMaxHeadBytes) return Refused(414, "the request line is too long");
    return {.skipped = skipped};
  }
  if (!MethodCanBegin(head.substr(0, end)) || end == 0 || head[end - 1] != '\r') {
    return Refused(400, "this is no HTTP request");
  }
  HeadScan scan = CheckRequestLine(head.substr(0, end - 1));
  if (scan.state == HeadScan::State::kRefused) return scan;
  scan = CheckFields(head.substr(end + 1));
  if (scan.state == HeadScan::State::kIncomplete && bytes.size() >= kMaxHeadBytes) {
    return Refused(431, absl::StrCat("the header is longer than ", kMaxHeadBytes, " bytes"));
  }
  scan.skipped = skipped;
  return scan;
}

}  // namespace warpline
