// ChatPrompts where the template interpreter is not part of the build: chat is refused.
#include "base/error_detail.h"
#include "coordinator/chat_prompts.h"

namespace warpline {

absl::StatusOr<ChatPrompts> ChatPrompts::Create(const GgufFile&, const Tokenizer& tokenizer,
                                                const std::string&) {
  return ChatPrompts(tokenizer);
}

absl::StatusOr<std::vector<int32_t>> ChatPrompts::Encode(const v1::ChatPrompt&) const {
  (void)tokenizer_;
  return WithDetail(absl::InvalidArgumentError("the model has no chat template"),
                    {.code = "no_chat_template"});
}

}  // namespace warpline
