// Who may call: API keys, compared without telling by time how much of a key was right.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace warpline {

class ApiKeys {
 public:
  explicit ApiKeys(const std::vector<std::string>& keys);

  bool required() const { return !digests_.empty(); }
  // Looks at every key, whichever matches.
  bool Accepts(absl::string_view key) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  static Digest Sha256(absl::string_view bytes);

  std::vector<Digest> digests_;
};

// The key in an Authorization field ("Bearer KEY"); empty when it has another scheme.
absl::string_view BearerKey(absl::string_view authorization);

}  // namespace warpline
