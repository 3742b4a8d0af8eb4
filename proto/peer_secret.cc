#include "proto/peer_secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "proto/grpc_server.h"

namespace warpline {
namespace {

constexpr int64_t kMaxSecretBytes = 4096;

absl::Status BadSecretFile(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("secret file ", EscapeForLog(path), " ", why));
}

}  // namespace

absl::StatusOr<PeerSecret> PeerSecret::Load(const std::string& path) {
  if (path.empty()) return PeerSecret();
  // A FIFO must not block the start, so it is opened without waiting and refused below.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return BadSecretFile(path, absl::StrCat("cannot be read: ", strerror(errno)));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return BadSecretFile(path, "is no regular file");
  }
  if (info.st_size > kMaxSecretBytes) {
    return BadSecretFile(path,
                         absl::StrCat("has ", info.st_size, " bytes, at most ", kMaxSecretBytes));
  }
  std::string secret(kMaxSecretBytes, '\0');
  const ssize_t count = read(fd.get(), secret.data(), secret.size());
  if (count < 0) return BadSecretFile(path, absl::StrCat("cannot be read: ", strerror(errno)));
  secret.resize(static_cast<size_t>(count));
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.empty()) return BadSecretFile(path, "is empty");
  if ((info.st_mode & S_IROTH) != 0) {
    LogWarning("secret file ", EscapeForLog(path), " can be read by everybody");
  }
  return PeerSecret(std::move(secret));
}

std::string PeerSecret::Proof(absl::string_view purpose, uint64_t epoch) const {
  if (!present()) return "";
  const std::string message = absl::StrCat(purpose, epoch);
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned int digest_bytes = 0;
  const unsigned char* result =
      HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(digest.data()), &digest_bytes);
  WL_CHECK(result != nullptr);
  digest.resize(digest_bytes);
  return digest;
}

absl::Status PeerSecret::Check(absl::string_view purpose, uint64_t epoch,
                               absl::string_view proof) const {
  if (!present() && proof.empty()) return absl::OkStatus();
  if (!present()) {
    return absl::UnauthenticatedError(
        "the peer proves a secret, but this side was started without --secret-file");
  }
  if (proof.empty()) {
    return absl::UnauthenticatedError("this side wants proof of --secret-file, the peer gave none");
  }
  const std::string expected = Proof(purpose, epoch);
  if (proof.size() != expected.size() ||
      CRYPTO_memcmp(proof.data(), expected.data(), expected.size()) != 0) {
    return absl::UnauthenticatedError("the peer's secret is not the one in --secret-file");
  }
  return absl::OkStatus();
}

absl::Status CheckBindAllowed(const std::string& address, const PeerSecret& secret) {
  if (secret.present() || IsLocalAddress(address)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("refusing to listen on ", EscapeForLog(address),
                   " without --secret-file: only loopback addresses and Unix sockets may do so"));
}

}  // namespace warpline
