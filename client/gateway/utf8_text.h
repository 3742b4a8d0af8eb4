// Bytes that shall become JSON strings.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace warpline {

bool IsUtf8(absl::string_view bytes);
// Each byte that is not part of a well-formed character becomes U+FFFD.
std::string ReplaceInvalidUtf8(absl::string_view bytes);

}  // namespace warpline
