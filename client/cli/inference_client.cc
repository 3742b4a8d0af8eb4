#include "client/cli/inference_client.h"

#include <grpcpp/client_context.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "proto/deadline.h"
#include "proto/grpc_server.h"
#include "proto/grpc_status.h"

namespace warpline {
namespace {

// Cancels a call when SIGINT or SIGTERM (blocked in all threads) arrives during its life.
class CancelOnSignal {
 public:
  explicit CancelOnSignal(grpc::ClientContext& context) : done_(eventfd(0, EFD_CLOEXEC)) {
    thread_ = std::thread([this, &context] {
      const UniqueFd signal_fd = OpenStopSignals();
      pollfd fds[] = {{.fd = signal_fd.get(), .events = POLLIN},
                      {.fd = done_.get(), .events = POLLIN}};
      while (poll(fds, 2, -1) < 0) continue;
      if (TakeStopSignal(signal_fd.get())) context.TryCancel();
    });
  }
  ~CancelOnSignal() {
    const uint64_t one = 1;
    (void)!write(done_.get(), &one, sizeof(one));
    thread_.join();
  }

 private:
  UniqueFd done_;
  std::thread thread_;
};

}  // namespace

InferenceClient::InferenceClient(const std::string& address)
    : stub_(v1::Inference::NewStub(OpenChannel(address))) {}

absl::Status InferenceClient::Generate(
    const v1::GenerateRequest& request,
    const std::function<absl::Status(const v1::GenerateResponse&)>& on_event) {
  grpc::ClientContext context;
  const CancelOnSignal cancel(context);
  const std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader =
      stub_->Generate(&context, request);
  v1::GenerateResponse event;
  absl::Status status;
  while (status.ok() && reader->Read(&event)) status = on_event(event);
  if (!status.ok()) context.TryCancel();
  const absl::Status finished = FromGrpc(reader->Finish());
  return status.ok() ? finished : status;
}

absl::Status InferenceClient::Evaluate(
    const v1::EvaluateRequest& request,
    const std::function<absl::Status(const v1::EvaluateResponse&)>& on_rows) {
  grpc::ClientContext context;
  const CancelOnSignal cancel(context);
  const std::unique_ptr<grpc::ClientReader<v1::EvaluateResponse>> reader =
      stub_->Evaluate(&context, request);
  v1::EvaluateResponse rows;
  absl::Status status;
  while (status.ok() && reader->Read(&rows)) status = on_rows(rows);
  if (!status.ok()) context.TryCancel();
  const absl::Status finished = FromGrpc(reader->Finish());
  return status.ok() ? finished : status;
}

absl::StatusOr<v1::StatusResponse> InferenceClient::GetStatus(int timeout_seconds) {
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(std::chrono::seconds(timeout_seconds)));
  v1::StatusResponse response;
  WL_RETURN_IF_ERROR(FromGrpc(stub_->Status(&context, v1::StatusRequest(), &response)));
  return response;
}

}  // namespace warpline
