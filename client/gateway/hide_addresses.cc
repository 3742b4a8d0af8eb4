#include "client/gateway/hide_addresses.h"

#include <algorithm>

namespace warpline {

std::string HideAddresses(absl::string_view text) {
  std::string shown;
  while (!text.empty()) {
    size_t begin = text.size();
    for (const absl::string_view scheme : {"unix:", "unix-abstract:", "ipv4:", "ipv6:", "dns:"}) {
      begin = std::min(begin, text.find(scheme));
    }
    shown.append(text.data(), begin);
    text.remove_prefix(begin);
    if (text.empty()) break;
    shown += "(address)";
    text.remove_prefix(std::min(text.find_first_of(" \t,;)'\""), text.size()));
  }
  return shown;
}

}  // namespace warpline
