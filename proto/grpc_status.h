// Between absl::Status and grpc::Status, with the error detail in the binary details of the latter.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace warpline {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace warpline
