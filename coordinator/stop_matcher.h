// Finds the first of several stop strings in a stream of bytes, holding back what may begin one.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace warpline {

// One stream's state, used by one thread. Time is linear in the bytes, whatever the stop strings
// look like.
class StopMatcher {
 public:
  // `stops` are not empty strings.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // The bytes that are certain to precede any stop string, in order. Once a stop string is complete
  // (of several that end there, the longest), those before it; then found() is true and nothing
  // further comes. What comes does not depend on how the stream is cut into calls.
  std::string Push(absl::string_view bytes);
  // The end of the stream: what was held back.
  std::string Finish();

  bool found() const { return found_; }

 private:
  // Knuth, Morris and Pratt: how much of `text` the stream's end matches, byte by byte.
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // [text.size()]: longest proper border of each prefix
    size_t matched = 0;
  };
  static void Advance(Pattern& pattern, char byte);

  std::vector<Pattern> patterns_;
  std::string held_;
  bool found_ = false;
};

}  // namespace warpline
