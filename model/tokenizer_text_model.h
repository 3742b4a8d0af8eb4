// How a kind of tokenizer turns plain text into tokens and the text of a token into bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace warpline {

// Immutable; may be used from any thread at once.
class TextModel {
 public:
  virtual ~TextModel() = default;
  // Appends the tokens of one fragment: what lies between special tokens, or between one and the
  // text's beginning or end. Shorter than 2 GiB.
  virtual void Encode(absl::string_view fragment, std::vector<int32_t>* ids) const = 0;
  // The bytes that a normal token with this text stands for.
  virtual std::string BytesOf(absl::string_view token_text) const = 0;
};

}  // namespace warpline
