// Cuts a chat template into text, and the tokens inside {{ }} and {% %}, with Jinja's rules for
// white space (trim_blocks and lstrip_blocks on, one newline at the end of the template dropped).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace warpline::chat {

enum class TokenKind {
  kText,        // between tags
  kBeginPrint,  // {{
  kEndPrint,
  kBeginBlock,  // {%
  kEndBlock,
  kName,
  kString,  // without quotes, escapes resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 0;
};

// Errors: InvalidArgument "line N: reason". The last token is kEnd.
absl::StatusOr<std::vector<Token>> Tokenise(absl::string_view source);

// InvalidArgument "line N: reason".
absl::Status LineError(int line, absl::string_view reason);

}  // namespace warpline::chat
