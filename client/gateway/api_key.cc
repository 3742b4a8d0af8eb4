#include "client/gateway/api_key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "base/status.h"

namespace warpline {

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) digests_.push_back(Sha256(key));
}

ApiKeys::Digest ApiKeys::Sha256(absl::string_view bytes) {
  Digest digest{};
  unsigned int size = 0;
  WL_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) ==
           1);
  return digest;
}

bool ApiKeys::Accepts(absl::string_view key) const {
  const Digest given = Sha256(key);
  int matches = 0;
  for (const Digest& digest : digests_) {
    matches |= CRYPTO_memcmp(given.data(), digest.data(), digest.size()) == 0 ? 1 : 0;
  }
  return matches != 0;
}

absl::string_view BearerKey(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
}

}  // namespace warpline
