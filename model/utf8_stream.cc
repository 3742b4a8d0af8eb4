#include "model/tokenizer.h"

#include "base/utf8.h"

namespace warpline {

std::string Utf8Stream::Push(absl::string_view bytes) {
  std::string joined = std::move(held_);
  joined.append(bytes.data(), bytes.size());
  held_.clear();
  absl::string_view rest = joined;
  std::string ready;
  while (!rest.empty()) {
    const Utf8Character next = DecodeUtf8(rest);
    if (next.state == Utf8State::kIncomplete) {
      held_ = std::string(rest);
      break;
    }
    AppendUtf8(next.code, &ready);
    rest.remove_prefix(next.byte_count);
  }
  return ready;
}

std::string Utf8Stream::Finish() {
  std::string rest;
  if (!held_.empty()) AppendUtf8(kReplacementCharacter, &rest);
  held_.clear();
  return rest;
}

}  // namespace warpline
