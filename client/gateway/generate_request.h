// What a client asks for: the bodies of /v1/chat/completions and /v1/completions as
// GenerateRequest.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/inference.pb.h"

namespace warpline {

constexpr size_t kMaxBatchPrompts = 64;
constexpr int32_t kDefaultCompletionTokens = 16;

struct GenerateJob {
  bool chat = false;
  bool stream = false;
  bool include_usage = false;     // a usage chunk at the end of a stream
  bool return_token_ids = false;  // choices[i].token_ids
  std::optional<std::string> model;
  std::vector<v1::GenerateRequest> requests;  // one for each choice, in order; at least one
};

// Checks types, ranges and limits that need no model; the coordinator checks the rest. Unknown
// fields are ignored. Known fields that are not supported are refused when they ask for something.
// Errors are InvalidArgument with the field's name.
absl::StatusOr<GenerateJob> ParseChatRequest(const boost::json::object& body);
absl::StatusOr<GenerateJob> ParseCompletionRequest(const boost::json::object& body);

// The list of token ids at `value`: InvalidArgument names `path` and the index at fault.
absl::Status ParseTokenIds(const boost::json::value& value, const std::string& path,
                           v1::TokenIds& ids);

}  // namespace warpline
