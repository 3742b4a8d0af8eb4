// Chat templates: a bounded interpreter of the Jinja subset that GGUF files carry. Literals of the
// template are trusted text, everything from messages is not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/trusted_text.h"

namespace warpline {

// All JSON texts come from outside and are parsed here (depth at most 64). Empty: absent.
struct ChatInput {
  std::string messages_json;  // an array of objects; required
  std::string tools_json;     // an array
  std::string kwargs_json;    // an object: chat_template_kwargs
  bool add_generation_prompt = true;
  std::string bos_token;
  std::string eos_token;
  int64_t unix_seconds = 0;  // for strftime_now
};

struct ChatLimits {
  int64_t max_steps = 4'000'000;
  int64_t max_output_bytes = 16 << 20;
  int max_depth = 64;
};

// Immutable; Render may be called from any thread at once.
class ChatTemplate {
 public:
  // Errors: InvalidArgument "line N: reason". Sources above 1 MiB are refused.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(absl::string_view source);
  // The template named by --chat-template when it is a built-in name ("chatml"); NotFound
  // otherwise.
  static absl::StatusOr<std::string> BuiltIn(absl::string_view name);
  virtual ~ChatTemplate() = default;
  // Errors: InvalidArgument "line N: reason" (raise_exception, type errors, a limit reached, bad
  // JSON).
  virtual absl::StatusOr<TrustedText> Render(const ChatInput& input,
                                             const ChatLimits& limits = {}) const = 0;
};

}  // namespace warpline
