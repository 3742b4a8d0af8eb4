// The shared secret of coordinator and workers, and the proof of it that opens every internal link.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace warpline {

constexpr char kControlPurpose[] = "warpline control";
constexpr char kEdgePurpose[] = "warpline edge";

// Immutable; an empty one stands for a deployment without a secret.
class PeerSecret {
 public:
  PeerSecret() = default;
  explicit PeerSecret(std::string secret) : secret_(std::move(secret)) {}

  // Reads `path`, less trailing line ends; an empty path gives no secret. InvalidArgument when the
  // file cannot be read, is empty or larger than 4 KiB; a file that others may read is only warned
  // about.
  static absl::StatusOr<PeerSecret> Load(const std::string& path);

  bool present() const { return !secret_.empty(); }
  // HMAC-SHA256(secret, purpose + decimal epoch); empty without a secret.
  std::string Proof(absl::string_view purpose, uint64_t epoch) const;
  // Unauthenticated unless `proof` is what Proof gives here; takes the same time wherever they
  // differ.
  absl::Status Check(absl::string_view purpose, uint64_t epoch, absl::string_view proof) const;

 private:
  std::string secret_;
};

// FailedPrecondition for a bind other than loopback or a Unix socket when there is no secret.
absl::Status CheckBindAllowed(const std::string& address, const PeerSecret& secret);

}  // namespace warpline
