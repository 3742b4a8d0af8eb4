// Log lines on stderr: one event a line, `key=value` pairs, never blocking (a full pipe drops lines
// and counts them).
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace warpline {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// Lines below `level` are dropped. `program` stands in each line. Call once, before threads start.
void SetUpLog(absl::string_view program, LogLevel level);
// Accepts debug, info, warning, error.
bool ParseLogLevel(absl::string_view text, LogLevel& level);
bool LogEnabled(LogLevel level);
// Writes one line: time, level, program, message. Control characters are escaped, so a message
// cannot forge lines.
void WriteLog(LogLevel level, absl::string_view message);
// Lines that did not fit into a blocked stderr.
uint64_t DroppedLogLines();

// Printable form of outside bytes: control and non-UTF-8 bytes become \xHH.
std::string EscapeForLog(absl::string_view bytes);

// Each takes what absl::StrCat takes: LogInfo("loaded stage=", stage, " layers=", text).
template <typename... Args>
void LogDebug(const Args&... args) {
  if (LogEnabled(LogLevel::kDebug)) WriteLog(LogLevel::kDebug, absl::StrCat(args...));
}
template <typename... Args>
void LogInfo(const Args&... args) {
  if (LogEnabled(LogLevel::kInfo)) WriteLog(LogLevel::kInfo, absl::StrCat(args...));
}
template <typename... Args>
void LogWarning(const Args&... args) {
  if (LogEnabled(LogLevel::kWarning)) WriteLog(LogLevel::kWarning, absl::StrCat(args...));
}
template <typename... Args>
void LogError(const Args&... args) {
  if (LogEnabled(LogLevel::kError)) WriteLog(LogLevel::kError, absl::StrCat(args...));
}

}  // namespace warpline
