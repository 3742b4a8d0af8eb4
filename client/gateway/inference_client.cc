#include "client/gateway/inference_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "client/gateway/hide_addresses.h"
#include "proto/deadline.h"
#include "proto/grpc_server.h"
#include "proto/grpc_status.h"
#include "proto/inference.grpc.pb.h"

namespace warpline {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::seconds kProbeTimeout{2};  // Status and Metrics
constexpr std::chrono::seconds kTextTimeout{30};  // Tokenize and Detokenize of a long text

using Executor = asio::any_io_executor;
using Guard = asio::executor_work_guard<Executor>;

// gRPC's own messages name addresses and files; those of the coordinator are passed on.
absl::Status ForClients(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return absl::OkStatus();
  const std::string& message = status.error_message();
  const bool transport =
      status.error_details().empty() && (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                                         status.error_code() == grpc::StatusCode::UNKNOWN);
  if (transport && (context.peer().empty() || absl::StartsWith(message, "failed to connect"))) {
    return absl::UnavailableError("the coordinator cannot be reached");
  }
  // Only at the beginning: the coordinator quotes the same words about its stages.
  for (const absl::string_view words :
       {"Socket closed", "Connection reset", "recvmsg", "sendmsg", "Broken pipe", "GOAWAY",
        "Stream removed", "keepalive", "Endpoint closing", "Cancelling all calls"}) {
    if (transport && absl::StartsWith(message, words)) {
      return absl::UnavailableError("the connection to the coordinator was lost");
    }
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError("the request took too long");
  }
  return FromGrpc(
      grpc::Status(status.error_code(), HideAddresses(message), status.error_details()));
}

// One Generate. Reads are started on the executor, so a hold keeps the call open between them.
class GenerateReactor final : public grpc::ClientReadReactor<v1::GenerateResponse>,
                              public std::enable_shared_from_this<GenerateReactor> {
 public:
  GenerateReactor(Executor executor, v1::GenerateRequest request, GenerateCallbacks callbacks)
      : guard_(std::move(executor)),
        request_(std::move(request)),
        callbacks_(std::move(callbacks)) {}

  void Start(v1::Inference::Stub& stub, std::chrono::milliseconds timeout) {
    self_ = shared_from_this();
    context_.set_deadline(DeadlineIn(timeout));
    stub.async()->Generate(&context_, &request_, this);
    AddHold();
    StartRead(&response_);
    StartCall();
  }

  void Cancel() {
    if (cancelled_) return;
    cancelled_ = true;
    asio::post(guard_.get_executor(), [old = std::exchange(callbacks_, {})] {});
    context_.TryCancel();
  }

  // On a thread of gRPC: hand over to the executor and nothing else.
  void OnReadDone(bool ok) override {
    if (!ok) return RemoveHold();
    asio::post(guard_.get_executor(), [self = shared_from_this()] { self->Deliver(); });
  }
  void OnDone(const grpc::Status& status) override {
    asio::post(guard_.get_executor(),
               [self = std::move(self_), status] { self->Complete(status); });
  }

 private:
  void Deliver() {
    if (!cancelled_) callbacks_.on_event(response_);
    // Also after a cancellation: messages that nobody reads would keep the call from ending.
    StartRead(&response_);
  }
  void Complete(const grpc::Status& status) {
    if (!cancelled_) {
      cancelled_ = true;
      const GenerateCallbacks callbacks = std::exchange(callbacks_, {});
      callbacks.on_done(ForClients(status, context_));
    }
    guard_.reset();
  }

  Guard guard_;
  const v1::GenerateRequest request_;
  GenerateCallbacks callbacks_;
  bool cancelled_ = false;  // or done: nothing is called any more; touched on the executor
  grpc::ClientContext context_;
  v1::GenerateResponse response_;          // the one read in flight
  std::shared_ptr<GenerateReactor> self_;  // until OnDone
};

template <typename Request, typename Response>
struct UnaryCall {
  UnaryCall(Executor executor, Request message) : guard(executor), request(std::move(message)) {}

  Guard guard;
  const Request request;
  Response response;
  grpc::ClientContext context;
};

}  // namespace

struct InferenceClient::Impl {
  Impl(Executor on, const std::string& address)
      : executor(std::move(on)), stub(v1::Inference::NewStub(OpenChannel(address))) {}

  // `method` is one of the callback methods of the stub.
  template <typename Request, typename Response, typename Method>
  void Call(Method method, Request request, std::chrono::milliseconds timeout,
            UnaryCallback<Response> done) {
    auto call = std::make_shared<UnaryCall<Request, Response>>(executor, std::move(request));
    call->context.set_deadline(DeadlineIn(timeout));
    method(*stub, &call->context, &call->request, &call->response,
           [call, done = std::move(done)](const grpc::Status& status) {
             asio::post(call->guard.get_executor(), [call, done, status] {
               if (status.ok()) {
                 done(std::move(call->response));
               } else {
                 done(ForClients(status, call->context));
               }
               call->guard.reset();
             });
           });
  }

  const Executor executor;
  const std::unique_ptr<v1::Inference::Stub> stub;
};

InferenceClient::InferenceClient(Executor executor, const std::string& address)
    : impl_(std::make_unique<Impl>(std::move(executor), address)) {}
InferenceClient::~InferenceClient() = default;

std::function<void()> InferenceClient::Generate(v1::GenerateRequest request,
                                                std::chrono::milliseconds timeout,
                                                GenerateCallbacks callbacks) {
  auto call =
      std::make_shared<GenerateReactor>(impl_->executor, std::move(request), std::move(callbacks));
  call->Start(*impl_->stub, timeout);
  return [call] { call->Cancel(); };
}

void InferenceClient::Tokenize(v1::TokenizeRequest request,
                               UnaryCallback<v1::TokenizeResponse> done) {
  impl_->Call<v1::TokenizeRequest, v1::TokenizeResponse>(
      [](auto& stub, auto... arguments) { stub.async()->Tokenize(std::move(arguments)...); },
      std::move(request), kTextTimeout, std::move(done));
}

void InferenceClient::Detokenize(v1::DetokenizeRequest request,
                                 UnaryCallback<v1::DetokenizeResponse> done) {
  impl_->Call<v1::DetokenizeRequest, v1::DetokenizeResponse>(
      [](auto& stub, auto... arguments) { stub.async()->Detokenize(std::move(arguments)...); },
      std::move(request), kTextTimeout, std::move(done));
}

void InferenceClient::Status(UnaryCallback<v1::StatusResponse> done) {
  impl_->Call<v1::StatusRequest, v1::StatusResponse>(
      [](auto& stub, auto... arguments) { stub.async()->Status(std::move(arguments)...); }, {},
      kProbeTimeout, std::move(done));
}

void InferenceClient::Metrics(UnaryCallback<v1::MetricsResponse> done) {
  impl_->Call<v1::MetricsRequest, v1::MetricsResponse>(
      [](auto& stub, auto... arguments) { stub.async()->Metrics(std::move(arguments)...); }, {},
      kProbeTimeout, std::move(done));
}

}  // namespace warpline
