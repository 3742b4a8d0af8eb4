#include "client/gateway/generate_request.h"

#include <boost/json/array.hpp>
#include <boost/json/string.hpp>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/error_detail.h"
#include "base/status.h"
#include "client/gateway/chat_messages.h"
#include "client/gateway/json_body.h"
#include "client/gateway/request_fields.h"
#include "client/gateway/sampling_fields.h"

namespace warpline {
namespace {

namespace json = boost::json;

void ParseStreamFields(RequestFields& fields, GenerateJob& job) {
  job.model = fields.String("model");
  job.stream = fields.Bool("stream").value_or(false);
  job.return_token_ids = fields.Bool("return_token_ids").value_or(false);
  const json::value* const options = fields.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    fields.Fail("stream_options", "must be an object", "invalid_type");
    return;
  }
  RequestFields inner(options->get_object(), "stream_options.");
  job.include_usage = inner.Bool("include_usage").value_or(false);
  fields.Keep(inner.status());
}

// One prompt of a completion: text or token ids.
absl::Status ParsePrompt(const json::value& value, const std::string& path,
                         v1::GenerateRequest& request) {
  if (const json::string* const text = value.if_string()) {
    request.set_text(text->data(), text->size());
    return absl::OkStatus();
  }
  return ParseTokenIds(value, path, *request.mutable_tokens());
}

// A prompt, or a list of prompts: one request for each.
absl::Status ParsePrompts(const RequestFields& fields, const v1::GenerateRequest& common,
                          std::vector<v1::GenerateRequest>& requests) {
  const json::value* const prompt = fields.Find("prompt");
  if (prompt == nullptr) return InvalidField("prompt", "is missing", "missing_field");
  const json::array* const list = prompt->if_array();
  if (list == nullptr && !prompt->is_string()) {
    return InvalidField("prompt",
                        absl::StrCat("must be a string or a list, not ", KindName(*prompt)),
                        "invalid_type");
  }
  if (list != nullptr && list->empty()) return InvalidField("prompt", "must not be empty");
  const bool batch = list != nullptr && (list->front().is_string() || list->front().is_array());
  if (!batch) {
    requests.push_back(common);
    return ParsePrompt(*prompt, "prompt", requests.back());
  }
  if (list->size() > kMaxBatchPrompts) {
    return InvalidField("prompt", absl::StrCat("has ", list->size(), " prompts, at most ",
                                               kMaxBatchPrompts, " are allowed"));
  }
  for (size_t index = 0; index < list->size(); ++index) {
    requests.push_back(common);
    const std::string path = absl::StrCat("prompt[", index, "]");
    if ((*list)[index].kind() != list->front().kind()) {
      return InvalidField(path, "must be of the same kind as the first prompt", "invalid_type");
    }
    WL_RETURN_IF_ERROR(ParsePrompt((*list)[index], path, requests.back()));
  }
  return absl::OkStatus();
}

absl::Status ParseChatPrompt(RequestFields& fields, v1::ChatPrompt& chat) {
  const json::value* const messages = fields.Find("messages");
  if (messages == nullptr) return InvalidField("messages", "is missing", "missing_field");
  WL_ASSIGN_OR_RETURN(*chat.mutable_messages_json(), ChatMessagesJson(*messages));
  if (const json::value* const arguments = fields.Find("chat_template_kwargs")) {
    if (!arguments->is_object()) {
      return InvalidField("chat_template_kwargs", "must be an object", "invalid_type");
    }
    chat.set_template_kwargs_json(ToJson(*arguments));
  }
  if (const auto add = fields.Bool("add_generation_prompt")) chat.set_add_generation_prompt(*add);
  return fields.status();
}

}  // namespace

absl::Status ParseTokenIds(const json::value& value, const std::string& path, v1::TokenIds& ids) {
  const json::array* const list = value.if_array();
  if (list == nullptr) {
    return InvalidField(path, absl::StrCat("must be a list of token ids, not ", KindName(value)),
                        "invalid_type");
  }
  if (list->empty()) return InvalidField(path, "must not be empty");
  ids.mutable_ids()->Reserve(static_cast<int>(list->size()));
  for (size_t index = 0; index < list->size(); ++index) {
    const int64_t* const id = (*list)[index].if_int64();
    if (id == nullptr) {
      return InvalidField(absl::StrCat(path, "[", index, "]"),
                          absl::StrCat("must be a token id, not ", KindName((*list)[index])),
                          "invalid_type");
    }
    if (*id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      return InvalidField(absl::StrCat(path, "[", index, "]"),
                          absl::StrCat(*id, " is no token id of this vocabulary"));
    }
    ids.add_ids(static_cast<int32_t>(*id));
  }
  return absl::OkStatus();
}

absl::StatusOr<GenerateJob> ParseChatRequest(const json::object& body) {
  GenerateJob job{.chat = true};
  RequestFields fields(body);
  ParseStreamFields(fields, job);
  RefuseUnsupported(fields);
  v1::GenerateRequest request;
  ParseSamplingFields(fields, request);
  WL_RETURN_IF_ERROR(fields.status());
  WL_RETURN_IF_ERROR(ParseChatPrompt(fields, *request.mutable_chat()));
  job.requests.push_back(std::move(request));
  return job;
}

absl::StatusOr<GenerateJob> ParseCompletionRequest(const json::object& body) {
  GenerateJob job;
  RequestFields fields(body);
  ParseStreamFields(fields, job);
  RefuseUnsupported(fields);
  v1::GenerateRequest common;
  ParseSamplingFields(fields, common);
  common.set_parse_special(fields.Bool("parse_special").value_or(false));
  if (!common.has_max_tokens()) common.set_max_tokens(kDefaultCompletionTokens);
  WL_RETURN_IF_ERROR(fields.status());
  WL_RETURN_IF_ERROR(ParsePrompts(fields, common, job.requests));
  return job;
}

}  // namespace warpline
