#include "coordinator/served_model.h"

#include "base/error_detail.h"
#include "base/status.h"
#include "coordinator/request_checks.h"

namespace warpline {
namespace {

absl::Status CheckVocabulary(const ServedModel& model) {
  if (model.tokenizer->has_vocabulary()) return absl::OkStatus();
  return InvalidField("prompt", "the model has no vocabulary: give token ids");
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> PromptTokens(const ServedModel& model,
                                                  const v1::GenerateRequest& request) {
  std::vector<int32_t> tokens;
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kTokens:
      tokens.assign(request.tokens().ids().begin(), request.tokens().ids().end());
      break;
    case v1::GenerateRequest::kText:
      WL_RETURN_IF_ERROR(CheckVocabulary(model));
      tokens = model.tokenizer->Encode(
          request.text(), {.add_special = true, .parse_special = request.parse_special()});
      break;
    case v1::GenerateRequest::kChat: {
      WL_RETURN_IF_ERROR(CheckVocabulary(model));
      WL_ASSIGN_OR_RETURN(tokens, model.chat->Encode(request.chat()));
      break;
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return InvalidField("prompt", "is missing");
  }
  WL_RETURN_IF_ERROR(CheckTokenIds(tokens, model.vocab_size, "prompt"));
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> TokenizeInput(const ServedModel& model,
                                                   const v1::TokenizeRequest& request) {
  WL_RETURN_IF_ERROR(CheckVocabulary(model));
  switch (request.input_case()) {
    case v1::TokenizeRequest::kText:
      return model.tokenizer->Encode(request.text(), {.add_special = request.add_special(),
                                                      .parse_special = request.parse_special()});
    case v1::TokenizeRequest::kChat:
      return model.chat->Encode(request.chat());
    case v1::TokenizeRequest::INPUT_NOT_SET:
      break;
  }
  return InvalidField("text", "is missing");
}

}  // namespace warpline
