#include "proto/grpc_status.h"

#include <string>

#include "base/error_detail.h"
#include "proto/inference.pb.h"

namespace warpline {

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const ErrorDetail detail = DetailOf(status);
  v1::ErrorDetails details;
  details.set_code(detail.code);
  details.set_param(detail.param);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      details.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  v1::ErrorDetails details;
  if (!details.ParseFromString(status.error_details())) return result;
  return WithDetail(result, {.code = details.code(), .param = details.param()});
}

}  // namespace warpline
