#include "coordinator/text_stream.h"

namespace warpline {

TextStream::TextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stops)
    : tokenizer_(tokenizer), stops_(stops) {}

TextStream::Piece TextStream::Push(int32_t token_id) {
  const std::string bytes = tokenizer_.TokenBytes(token_id, /*show_special=*/false);
  const std::string text = characters_.Push(stops_.Push(bytes));
  return {.text = text, .stopped = stops_.found()};
}

std::string TextStream::Finish() { return characters_.Push(stops_.Finish()); }

}  // namespace warpline
