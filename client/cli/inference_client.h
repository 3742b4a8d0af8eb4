// Calls to a coordinator, blocking: what the commands need.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/inference.grpc.pb.h"

namespace warpline {

class InferenceClient {
 public:
  explicit InferenceClient(const std::string& address);

  // Calls `on_event` for every event; an error of it ends the call and is returned. While it runs
  // SIGINT and SIGTERM cancel the call (status Cancelled).
  absl::Status Generate(const v1::GenerateRequest& request,
                        const std::function<absl::Status(const v1::GenerateResponse&)>& on_event);
  // The same for rows of logits.
  absl::Status Evaluate(const v1::EvaluateRequest& request,
                        const std::function<absl::Status(const v1::EvaluateResponse&)>& on_rows);
  absl::StatusOr<v1::StatusResponse> GetStatus(int timeout_seconds);

 private:
  std::unique_ptr<v1::Inference::Stub> stub_;
};

}  // namespace warpline
