#include "model/chat_template.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/chat_interpreter.h"
#include "model/chat_json.h"
#include "model/chat_syntax.h"

namespace warpline {
namespace {

constexpr size_t kMaxSourceBytes = 1 << 20;

constexpr char kChatMl[] =
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] "
    "}}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

absl::StatusOr<chat::Value> ParseField(absl::string_view name, const std::string& json) {
  absl::StatusOr<chat::Value> value = chat::ParseJson(json);
  if (!value.ok()) return Annotate(value.status(), name);
  return value;
}

class JinjaTemplate final : public ChatTemplate {
 public:
  explicit JinjaTemplate(chat::Block block) : block_(std::move(block)) {}

  absl::StatusOr<TrustedText> Render(const ChatInput& input,
                                     const ChatLimits& limits) const override {
    std::map<std::string, chat::Value> variables;
    variables["tools"] = chat::None{};
    if (!input.kwargs_json.empty()) {
      WL_ASSIGN_OR_RETURN(const chat::Value kwargs,
                          ParseField("chat_template_kwargs", input.kwargs_json));
      if (kwargs.dict() == nullptr)
        return absl::InvalidArgumentError("chat_template_kwargs: expected an object");
      for (const auto& [key, value] : kwargs.dict()->items)
        variables[chat::ToText(key).bytes] = value;
    }
    WL_ASSIGN_OR_RETURN(variables["messages"], ParseField("messages", input.messages_json));
    if (variables["messages"].list() == nullptr)
      return absl::InvalidArgumentError("messages: expected a list");
    if (!input.tools_json.empty()) {
      WL_ASSIGN_OR_RETURN(variables["tools"], ParseField("tools", input.tools_json));
    }
    variables["add_generation_prompt"] = input.add_generation_prompt;
    variables["bos_token"] = chat::Text::Trusted(input.bos_token);
    variables["eos_token"] = chat::Text::Trusted(input.eos_token);
    WL_ASSIGN_OR_RETURN(
        const chat::Text text,
        chat::Interpreter(limits, input.unix_seconds).Render(block_, std::move(variables)));
    return chat::ToTrustedText(text);
  }

 private:
  const chat::Block block_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(absl::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("line 1: the template has ", source.size(),
                                                   " bytes, at most ", kMaxSourceBytes));
  }
  WL_ASSIGN_OR_RETURN(chat::Block block, chat::ParseTemplate(source, ChatLimits().max_depth));
  return std::make_unique<JinjaTemplate>(std::move(block));
}

absl::StatusOr<std::string> ChatTemplate::BuiltIn(absl::string_view name) {
  if (name == "chatml") return std::string(kChatMl);
  return absl::NotFoundError(
      absl::StrCat("no built-in chat template '", name, "' (known: chatml)"));
}

}  // namespace warpline
