#include "coordinator/chat_prompts.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/error_detail.h"
#include "base/log.h"
#include "base/status.h"

namespace warpline {
namespace {

constexpr char kTemplateKey[] = "tokenizer.chat_template";
constexpr size_t kMaxTemplateBytes = 1 << 20;

// "" when the model has no template.
absl::StatusOr<std::string> SourceOf(const GgufFile& file, const std::string& name_or_file) {
  if (name_or_file.empty()) {
    if (!file.Has(kTemplateKey)) return std::string();
    return file.GetString(kTemplateKey);
  }
  absl::StatusOr<std::string> built_in = ChatTemplate::BuiltIn(name_or_file);
  if (built_in.ok()) return built_in;
  std::ifstream input(name_or_file, std::ios::binary);
  std::string text(kMaxTemplateBytes + 1, '\0');
  input.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, input.gcount())));
  if (text.empty()) {
    return absl::NotFoundError(
        absl::StrCat("--chat-template: '", EscapeForLog(name_or_file),
                     "' is neither a built-in template nor a readable file"));
  }
  return text;
}

}  // namespace

absl::StatusOr<ChatPrompts> ChatPrompts::Create(const GgufFile& file, const Tokenizer& tokenizer,
                                                const std::string& name_or_file) {
  ChatPrompts prompts(tokenizer);
  WL_ASSIGN_OR_RETURN(const std::string source, SourceOf(file, name_or_file));
  if (source.empty()) return prompts;
  absl::StatusOr<std::unique_ptr<ChatTemplate>> parsed = ChatTemplate::Parse(source);
  if (parsed.ok()) {
    prompts.template_ = std::move(*parsed);
  } else {
    prompts.problem_ = absl::StrCat("the chat template is unusable: ", parsed.status().message());
    LogWarning(prompts.problem_);
  }
  return prompts;
}

absl::StatusOr<std::vector<int32_t>> ChatPrompts::Encode(const v1::ChatPrompt& prompt) const {
  if (template_ == nullptr) {
    return WithDetail(
        absl::InvalidArgumentError(
            problem_.empty() ? "the model has no chat template (--chat-template)" : problem_),
        {.code = "no_chat_template"});
  }
  const ChatInput input{.messages_json = prompt.messages_json(),
                        .tools_json = prompt.tools_json(),
                        .kwargs_json = prompt.template_kwargs_json(),
                        .add_generation_prompt =
                            !prompt.has_add_generation_prompt() || prompt.add_generation_prompt(),
                        .bos_token = tokenizer_->TokenText(tokenizer_->bos_id()),
                        .eos_token = tokenizer_->TokenText(tokenizer_->eos_id()),
                        .unix_seconds = UnixSeconds()};
  absl::StatusOr<TrustedText> text = template_->Render(input);
  if (!text.ok()) {
    return WithDetail(Annotate(text.status(), "chat template"),
                      {.code = "chat_template_error", .param = "messages"});
  }
  return tokenizer_->EncodeChat(*text);
}

}  // namespace warpline
