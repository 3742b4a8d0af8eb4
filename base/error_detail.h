// What an error answer says beside its message: a machine-readable code and the field it is about.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace warpline {

// Travels as a payload of absl::Status and as the binary details of a gRPC status; the gateway
// prints it as `code` and `param` of the OpenAI error object.
struct ErrorDetail {
  std::string code;   // such as "context_length_exceeded"; empty: derived from the status code
  std::string param;  // such as "messages[2].content"; empty: none
};

absl::Status WithDetail(absl::Status status, const ErrorDetail& detail);
ErrorDetail DetailOf(const absl::Status& status);

// InvalidArgument about one field of a request.
absl::Status InvalidField(absl::string_view param, absl::string_view message,
                          absl::string_view code = "invalid_value");

}  // namespace warpline
