// Unicode character classes, as sets of bits.
#pragma once

#include <cstdint>

namespace warpline {

// General categories that regexes of pre-tokenizers ask for, and the property White_Space.
enum CharacterClass : uint8_t {
  kLetter = 1,
  kNumber = 2,
  kMark = 4,
  kPunctuation = 8,
  kSymbol = 16,
  kWhiteSpace = 32,
};

// The union of CharacterClass bits that hold for `code`; 0 for unassigned code points, controls and
// the like.
uint8_t CharacterClassOf(char32_t code);

}  // namespace warpline
