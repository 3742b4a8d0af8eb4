#include "client/gateway/chat_messages.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/string.hpp>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/error_detail.h"
#include "base/status.h"
#include "client/gateway/json_body.h"
#include "client/gateway/request_fields.h"

namespace warpline {
namespace {

namespace json = boost::json;

constexpr absl::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

absl::string_view View(const json::string& text) { return {text.data(), text.size()}; }

absl::StatusOr<json::string> JoinParts(const json::array& parts, const std::string& path) {
  if (parts.empty()) return InvalidField(path, "must have at least one part");
  json::string joined;
  for (size_t index = 0; index < parts.size(); ++index) {
    const std::string part_path = absl::StrCat(path, "[", index, "]");
    const json::object* const part = parts[index].if_object();
    if (part == nullptr) return InvalidField(part_path, "must be an object", "invalid_type");
    const json::value* const type = part->if_contains("type");
    if (type == nullptr || !type->is_string()) {
      return InvalidField(absl::StrCat(part_path, ".type"), "must be a string", "invalid_type");
    }
    if (type->get_string() != "text") {
      return InvalidField(absl::StrCat(part_path, ".type"), "only parts of type text are supported",
                          "unsupported_content");
    }
    const json::value* const text = part->if_contains("text");
    if (text == nullptr || !text->is_string()) {
      return InvalidField(absl::StrCat(part_path, ".text"), "must be a string", "invalid_type");
    }
    if (index > 0) joined.push_back('\n');
    joined.append(text->get_string());
  }
  return joined;
}

bool HasToolCalls(const json::object& message) {
  const json::value* const calls = message.if_contains("tool_calls");
  return calls != nullptr && calls->is_array() && !calls->get_array().empty();
}

absl::Status CheckRole(const json::object& message, const std::string& path, std::string& role) {
  const std::string role_path = absl::StrCat(path, ".role");
  const json::value* const value = message.if_contains("role");
  if (value == nullptr) return InvalidField(role_path, "is missing", "missing_field");
  if (!value->is_string()) return InvalidField(role_path, "must be a string", "invalid_type");
  role = std::string(View(value->get_string()));
  if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
    return InvalidField(role_path, "must be system, developer, user, assistant or tool");
  }
  return absl::OkStatus();
}

absl::Status CheckMessage(json::object& message, const std::string& path) {
  std::string role;
  WL_RETURN_IF_ERROR(CheckRole(message, path, role));
  if (role == "tool") {
    const json::value* const id = message.if_contains("tool_call_id");
    if (id == nullptr || !id->is_string() || id->get_string().empty()) {
      return InvalidField(absl::StrCat(path, ".tool_call_id"), "must name the call it answers",
                          "missing_field");
    }
  }
  if (const json::value* const name = message.if_contains("name");
      name != nullptr && !name->is_null() && !name->is_string()) {
    return InvalidField(absl::StrCat(path, ".name"), "must be a string", "invalid_type");
  }
  const json::value* const calls = message.if_contains("tool_calls");
  if (calls != nullptr && !calls->is_null() && !calls->is_array()) {
    return InvalidField(absl::StrCat(path, ".tool_calls"), "must be a list", "invalid_type");
  }
  const std::string content_path = absl::StrCat(path, ".content");
  json::value* const content = message.if_contains("content");
  if (content == nullptr || content->is_null()) {
    if (role == "assistant" && HasToolCalls(message)) return absl::OkStatus();
    return InvalidField(content_path, "is missing", "missing_field");
  }
  if (content->is_string()) return absl::OkStatus();
  if (!content->is_array()) {
    return InvalidField(
        content_path, absl::StrCat("must be a string or a list of parts, not ", KindName(*content)),
        "invalid_type");
  }
  WL_ASSIGN_OR_RETURN(json::string joined, JoinParts(content->get_array(), content_path));
  *content = std::move(joined);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ChatMessagesJson(const json::value& messages) {
  const json::array* const list = messages.if_array();
  if (list == nullptr) {
    return InvalidField("messages", absl::StrCat("must be a list, not ", KindName(messages)),
                        "invalid_type");
  }
  if (list->empty()) return InvalidField("messages", "must have at least one message");
  if (list->size() > kMaxMessages) {
    return InvalidField("messages", absl::StrCat("has ", list->size(), " messages, at most ",
                                                 kMaxMessages, " are allowed"));
  }
  std::string text = "[";
  for (size_t index = 0; index < list->size(); ++index) {
    const std::string path = absl::StrCat("messages[", index, "]");
    const json::object* const given = (*list)[index].if_object();
    if (given == nullptr) return InvalidField(path, "must be an object", "invalid_type");
    json::object message(*given, json::storage_ptr());  // not from the body's memory budget
    WL_RETURN_IF_ERROR(CheckMessage(message, path));
    absl::StrAppend(&text, index > 0 ? "," : "", ToJson(message));
  }
  text.push_back(']');
  return text;
}

}  // namespace warpline
