// UTF-8: strict decoding of one character, encoding, and what follows for whole texts.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace warpline {

constexpr char32_t kReplacementCharacter = 0xFFFD;

enum class Utf8State { kComplete, kInvalid, kIncomplete };

struct Utf8Character {
  Utf8State state = Utf8State::kInvalid;
  char32_t code = kReplacementCharacter;  // the replacement unless complete
  size_t byte_count = 1;                  // to move on by: 1 when invalid, the rest when incomplete
};

// The first character of `text`, which must not be empty. Overlong forms, surrogates and values
// above U+10FFFF are invalid. Incomplete: the text ends inside a sequence that more bytes could
// complete.
Utf8Character DecodeUtf8(absl::string_view text);

// `code` must be a Unicode scalar value.
void AppendUtf8(char32_t code, std::string* text);

// Bytes that AppendUtf8 adds for `code`.
size_t Utf8ByteCount(char32_t code);

bool IsUtf8(absl::string_view bytes);
// Each byte that is not part of a well-formed character becomes U+FFFD.
std::string ReplaceInvalidUtf8(absl::string_view bytes);

}  // namespace warpline
