// JSON from requests as template values (order of keys and integers kept), and the `tojson`
// filter's text.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/chat_value.h"

namespace warpline::chat {

// Nothing of it is trusted. Errors: InvalidArgument with the byte offset. Containers nest at most
// 64 deep; integers beyond 64 bits are refused.
absl::StatusOr<Value> ParseJson(absl::string_view text);

// As Python's json.dumps(value, ensure_ascii=False, indent=indent); below 0: on one line.
// InvalidArgument for what JSON cannot say.
absl::StatusOr<Text> ToJson(const Value& value, int indent, bool sort_keys,
                            absl::string_view item_separator, absl::string_view key_separator);

}  // namespace warpline::chat
