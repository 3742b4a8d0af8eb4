// The `messages` of a chat request, checked and written as the coordinator's templates expect them.
#pragma once

#include <boost/json/value.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace warpline {

constexpr size_t kMaxMessages = 4096;

// JSON text of the messages: content that is a list of text parts becomes one string, its parts
// joined by line ends; everything else stays as it is. Errors name messages[i].field.
absl::StatusOr<std::string> ChatMessagesJson(const boost::json::value& messages);

}  // namespace warpline
