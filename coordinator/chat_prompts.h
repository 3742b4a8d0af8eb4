// Turns chat messages into prompt tokens by the model's chat template.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/chat_template.h"
#include "model/gguf.h"
#include "model/tokenizer.h"
#include "proto/inference.pb.h"

namespace warpline {

// Immutable; Encode may be called from any thread at once. Borrows the tokenizer.
class ChatPrompts {
 public:
  // `name_or_file` is --chat-template; empty: the template of the model file. NotFound when it
  // names neither a built-in template nor a readable file. A template with a syntax error is
  // only warned about: then chat is refused, with line and reason, and all else works.
  static absl::StatusOr<ChatPrompts> Create(const GgufFile& file, const Tokenizer& tokenizer,
                                            const std::string& name_or_file);

  bool available() const { return template_ != nullptr; }
  // InvalidArgument with code no_chat_template when there is none, else what the template says.
  absl::StatusOr<std::vector<int32_t>> Encode(const v1::ChatPrompt& prompt) const;

 private:
  explicit ChatPrompts(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  const Tokenizer* tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
  std::string problem_;  // why there is no template; empty: the model has none
};

}  // namespace warpline
