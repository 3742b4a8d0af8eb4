// Text of which some ranges may spell special tokens and the rest may not: what a chat template
// renders.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace warpline {

struct TextRange {
  size_t begin = 0;  // bytes, half-open
  size_t end = 0;
};

struct TrustedText {
  std::string text;
  std::vector<TextRange>
      trusted;  // ascending, disjoint, not touching: literals of the template, bos and eos texts
};

}  // namespace warpline
