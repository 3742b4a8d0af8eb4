#include "coordinator/inference_service.h"

#include <unistd.h>

#include <utility>

#include "base/status.h"
#include "coordinator/request_checks.h"
#include "proto/grpc_status.h"

namespace warpline {
namespace {

// Runs `job` on the tokenizer pool; it returns the status that ends the call.
grpc::ServerUnaryReactor* RunOnPool(TokenizerPool& pool, grpc::CallbackServerContext& call,
                                    std::function<absl::Status()> job) {
  grpc::ServerUnaryReactor* const reactor = call.DefaultReactor();
  const absl::Status queued =
      pool.Run([reactor, job = std::move(job)] { reactor->Finish(ToGrpc(job())); });
  if (!queued.ok()) reactor->Finish(ToGrpc(queued));
  return reactor;
}

// The place of a method in the service, as the generated code counts.
int MethodIndex(const std::string& name) {
  const google::protobuf::MethodDescriptor* const method = v1::GenerateRequest::descriptor()
                                                               ->file()
                                                               ->FindServiceByName("Inference")
                                                               ->FindMethodByName(name);
  WL_CHECK(method != nullptr);
  return method->index();
}

absl::Status Tokenise(const ServedModel& model, const v1::TokenizeRequest& request,
                      v1::TokenizeResponse& response) {
  absl::StatusOr<std::vector<int32_t>> ids = TokenizeInput(model, request);
  if (!ids.ok()) return ids.status();
  for (const int32_t id : *ids) {
    response.add_ids(id);
    response.add_pieces(model.tokenizer->TokenBytes(id, /*show_special=*/true));
  }
  return absl::OkStatus();
}

}  // namespace

InferenceService::InferenceService(const ServiceContext& context) : context_(context) {
  // As streams of both directions, so that a call is seen before its request: OneRequestReactor.
  MarkMethodStreamed(
      MethodIndex("Generate"),
      new grpc::internal::CallbackBidiHandler<v1::GenerateRequest, v1::GenerateResponse>(
          [this](grpc::CallbackServerContext* call) { return StartGenerate(context_, *call); }));
  MarkMethodStreamed(
      MethodIndex("Evaluate"),
      new grpc::internal::CallbackBidiHandler<v1::EvaluateRequest, v1::EvaluateResponse>(
          [this](grpc::CallbackServerContext* call) { return StartEvaluate(context_, *call); }));
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* call,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  const ServedModel& model = context_.model;
  return RunOnPool(context_.pool, *call,
                   [&model, request, response] { return Tokenise(model, *request, *response); });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* call,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  const ServedModel& model = context_.model;
  return RunOnPool(context_.pool, *call, [&model, request, response]() -> absl::Status {
    if (!request->ids().empty()) {
      // By the name that the field has in a JSON request, as in every other answer.
      WL_RETURN_IF_ERROR(CheckTokenIds(request->ids(), model.tokenizer->vocab_size(), "tokens"));
    }
    response->set_text(
        model.tokenizer->Decode(request->ids(), {.remove_special = request->remove_special(),
                                                 .unparse_special = request->unparse_special()}));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* InferenceService::Status(grpc::CallbackServerContext* call,
                                                   const v1::StatusRequest*,
                                                   v1::StatusResponse* response) {
  grpc::ServerUnaryReactor* const reactor = call->DefaultReactor();
  const ServedModel& model = context_.model;
  const bool asked =
      context_.engine.GetStatus([&model, reactor, response](v1::StatusResponse status) {
        *response = std::move(status);
        response->set_coordinator_pid(getpid());
        response->set_version(WARPLINE_VERSION);
        *response->mutable_model() = model.info;
        reactor->Finish(grpc::Status::OK);
      });
  if (!asked) reactor->Finish(ToGrpc(absl::ResourceExhaustedError("too many requests at once")));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Metrics(grpc::CallbackServerContext* call,
                                                    const v1::MetricsRequest*,
                                                    v1::MetricsResponse* response) {
  response->set_text(context_.metrics.Text());
  grpc::ServerUnaryReactor* const reactor = call->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace warpline
