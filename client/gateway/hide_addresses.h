// Internal addresses are none of a client's business.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace warpline {

// `text` with each gRPC address ("unix:/path", "ipv4:1.2.3.4:5", ..) replaced by "(address)".
std::string HideAddresses(absl::string_view text);

}  // namespace warpline
