#include "coordinator/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace warpline {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    Pattern pattern{.text = stop, .border = std::vector<size_t>(stop.size(), 0)};
    size_t length = 0;
    for (size_t index = 1; index < stop.size(); ++index) {
      while (length > 0 && stop[index] != stop[length]) length = pattern.border[length - 1];
      if (stop[index] == stop[length]) ++length;
      pattern.border[index] = length;
    }
    patterns_.push_back(std::move(pattern));
  }
}

void StopMatcher::Advance(Pattern& pattern, char byte) {
  while (pattern.matched > 0 && pattern.text[pattern.matched] != byte) {
    pattern.matched = pattern.border[pattern.matched - 1];
  }
  if (pattern.text[pattern.matched] == byte) ++pattern.matched;
}

std::string StopMatcher::Push(absl::string_view bytes) {
  if (found_ || bytes.empty()) return "";
  if (patterns_.empty()) return std::string(bytes);
  size_t kept = 0;
  for (const char byte : bytes) {
    held_.push_back(byte);
    kept = 0;
    size_t complete = 0;
    for (Pattern& pattern : patterns_) {
      Advance(pattern, byte);
      kept = std::max(kept, pattern.matched);
      if (pattern.matched == pattern.text.size()) complete = std::max(complete, pattern.matched);
    }
    if (complete > 0) {
      found_ = true;
      held_.resize(held_.size() - complete);
      return std::exchange(held_, "");
    }
  }
  std::string certain = held_.substr(0, held_.size() - kept);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopMatcher::Finish() { return std::exchange(held_, ""); }

}  // namespace warpline
