#include "base/log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <ctime>

#include "absl/strings/str_format.h"
#include "base/utf8.h"

namespace warpline {
namespace {

struct LogState {
  std::string program = "warpline";
  LogLevel level = LogLevel::kInfo;
  std::atomic<uint64_t> dropped{0};
};

LogState& State() {
  static LogState* const state =
      new LogState;  // Lives for ever: threads may log while the process exits.
  return *state;
}

std::string Timestamp() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", parts.tm_year + 1900,
                         parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                         static_cast<int>(now.tv_nsec / 1000000));
}

}  // namespace

void SetUpLog(absl::string_view program, LogLevel level) {
  State().program = std::string(program);
  State().level = level;
}

bool ParseLogLevel(absl::string_view text, LogLevel& level) {
  constexpr absl::string_view kNames[] = {"debug", "info", "warning", "error"};
  const auto* const found = std::find(std::begin(kNames), std::end(kNames), text);
  if (found == std::end(kNames)) return false;
  level = static_cast<LogLevel>(found - std::begin(kNames));
  return true;
}

bool LogEnabled(LogLevel level) { return level >= State().level; }

void WriteLog(LogLevel level, absl::string_view message) {
  constexpr char kLetters[] = "DIWE";
  std::string line =
      absl::StrCat(Timestamp(), " ", std::string(1, kLetters[static_cast<int>(level)]), " ",
                   State().program, " ", EscapeForLog(message));
  line.resize(std::min<size_t>(line.size(), PIPE_BUF - 1));
  line.push_back('\n');
  // A pipe that reports room takes PIPE_BUF bytes whole and at once.
  pollfd writable{.fd = STDERR_FILENO, .events = POLLOUT};
  if (poll(&writable, 1, 0) != 1 || (writable.revents & POLLOUT) == 0 ||
      write(STDERR_FILENO, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    State().dropped.fetch_add(1, std::memory_order_relaxed);
  }
}

uint64_t DroppedLogLines() { return State().dropped.load(std::memory_order_relaxed); }

std::string EscapeForLog(absl::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Character next = DecodeUtf8(bytes);
    if (next.state == Utf8State::kComplete && next.code >= 0x20 && next.code != 0x7F) {
      text.append(bytes.data(), next.byte_count);
      bytes.remove_prefix(next.byte_count);
    } else {
      absl::StrAppendFormat(&text, "\\x%02X", static_cast<unsigned char>(bytes[0]));
      bytes.remove_prefix(1);
    }
  }
  return text;
}

}  // namespace warpline
