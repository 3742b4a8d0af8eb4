// The model as the public service knows it: its texts, its limits, its name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/chat_prompts.h"
#include "model/gguf.h"
#include "model/model_spec.h"
#include "model/tokenizer.h"
#include "proto/inference.pb.h"

namespace warpline {

// Immutable; shared by all threads of the service.
struct ServedModel {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatPrompts> chat;
  v1::ModelInfo info;
  int32_t vocab_size = 0;  // of the logits
  int64_t context_length = 0;
};

// Prompt tokens of a request: at least one, within the vocabulary. To be called on the tokenizer
// pool unless the request holds token ids. Errors: InvalidArgument naming the field.
absl::StatusOr<std::vector<int32_t>> PromptTokens(const ServedModel& model,
                                                  const v1::GenerateRequest& request);

// Tokens of a Tokenize request, for the tokenizer pool.
absl::StatusOr<std::vector<int32_t>> TokenizeInput(const ServedModel& model,
                                                   const v1::TokenizeRequest& request);

}  // namespace warpline
