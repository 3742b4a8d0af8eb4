// A coordinator for tests: the real gRPC service on a Unix socket with scripted answers.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "proto/grpc_server.h"
#include "proto/grpc_status.h"
#include "proto/inference.grpc.pb.h"

namespace warpline {

// What a test tells its script, or a script its test: how often something has happened.
class Tally {
 public:
  void Add() {
    MutexLock lock(mutex_);
    ++count_;
    changed_.NotifyAll();
  }
  // Waits until it has happened `count` times; false after 10 s.
  bool Await(int count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    MutexLock lock(mutex_);
    while (count_ < count) {
      if (!changed_.WaitUntil(mutex_, deadline)) return count_ >= count;
    }
    return true;
  }
  int count() {
    MutexLock lock(mutex_);
    return count_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

class FakeCoordinator final : public v1::Inference::Service {
 public:
  using Writer = grpc::ServerWriter<v1::GenerateResponse>;
  using Script =
      std::function<grpc::Status(const v1::GenerateRequest&, grpc::ServerContext&, Writer&)>;

  FakeCoordinator() {
    char folder[] = "/tmp/warpline-fake-XXXXXX";
    folder_ = mkdtemp(folder);
    status_.set_ready(true);
    status_.set_coordinator_pid(4711);
    status_.mutable_model()->set_name("tiny");
    script_ = [](const v1::GenerateRequest& request, grpc::ServerContext&, Writer& writer) {
      SendStarted(writer, 5);
      for (int index = 0; index < request.max_tokens(); ++index) SendToken(writer, 100 + index);
      SendFinished(writer, v1::FINISH_REASON_LENGTH, 5, request.max_tokens());
      return grpc::Status::OK;
    };
    Start();
  }
  ~FakeCoordinator() override {
    Stop();
    rmdir(folder_.c_str());
  }

  std::string address() const { return absl::StrCat("unix:", folder_, "/socket"); }

  void Start() {
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(kMaxInternalMessageBytes);
    absl::StatusOr<ServerHandle> handle = StartServer(builder, address());
    if (!handle.ok()) std::abort();
    server_ = std::move(handle->server);
  }
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_ = nullptr;
    unlink((folder_ + "/socket").c_str());
  }

  void SetScript(Script script) {
    MutexLock lock(mutex_);
    script_ = std::move(script);
  }
  void SetStatus(v1::StatusResponse status) {
    MutexLock lock(mutex_);
    status_ = std::move(status);
  }
  std::vector<v1::GenerateRequest> requests() {
    MutexLock lock(mutex_);
    return requests_;
  }
  v1::TokenizeRequest tokenize_request() {
    MutexLock lock(mutex_);
    return tokenize_request_;
  }

  // Waits until `count` requests have begun, or been cancelled by the gateway; false after 10 s.
  bool WaitForBegun(int count) { return begun_.Await(count); }
  bool WaitForCancelled(int count) { return cancelled_.Await(count); }
  int cancelled() { return cancelled_.count(); }

  // Blocks until the gateway cancels; to be called by scripts. A blocking service of gRPC is not
  // told: it has to look.
  static grpc::Status HangUntilCancelled(grpc::ServerContext& context) {
    while (!context.IsCancelled()) usleep(1000);
    return grpc::Status::CANCELLED;
  }

  static void SendStarted(Writer& writer, uint32_t prompt_tokens) {
    v1::GenerateResponse response;
    response.mutable_started()->set_prompt_tokens(prompt_tokens);
    response.mutable_started()->set_seed(77);
    writer.Write(response);
  }
  // Its text is " t<id>".
  static bool SendToken(Writer& writer, int32_t id) {
    return SendToken(writer, id, absl::StrCat(" t", id));
  }
  static bool SendToken(Writer& writer, int32_t id, const std::string& text) {
    v1::GenerateResponse response;
    response.mutable_delta()->set_text(text);
    response.mutable_delta()->add_token_ids(id);
    return writer.Write(response);
  }
  static void SendFinished(Writer& writer, v1::FinishReason reason, uint32_t prompt_tokens,
                           uint32_t completion_tokens) {
    v1::GenerateResponse response;
    v1::Finished& finished = *response.mutable_finished();
    finished.set_reason(reason);
    finished.mutable_usage()->set_prompt_tokens(prompt_tokens);
    finished.mutable_usage()->set_completion_tokens(completion_tokens);
    finished.mutable_usage()->set_cached_tokens(2);
    writer.Write(response);
  }

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        Writer* writer) override {
    Script script;
    {
      MutexLock lock(mutex_);
      requests_.push_back(*request);
      script = script_;
    }
    begun_.Add();
    const grpc::Status status = script(*request, *context, *writer);
    if (context->IsCancelled()) cancelled_.Add();
    return status;
  }
  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override {
    MutexLock lock(mutex_);
    tokenize_request_ = *request;
    response->add_ids(7);
    response->add_ids(8);
    response->add_pieces("hi");
    response->add_pieces("\xE2\x82");
    return grpc::Status::OK;
  }
  grpc::Status Detokenize(grpc::ServerContext*, const v1::DetokenizeRequest* request,
                          v1::DetokenizeResponse* response) override {
    for (const int32_t id : request->ids())
      response->mutable_text()->push_back(static_cast<char>(id));
    return grpc::Status::OK;
  }
  grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*,
                      v1::StatusResponse* response) override {
    MutexLock lock(mutex_);
    *response = status_;
    return grpc::Status::OK;
  }
  grpc::Status Metrics(grpc::ServerContext*, const v1::MetricsRequest*,
                       v1::MetricsResponse* response) override {
    response->set_text("warpline_requests_total 3\n");
    return grpc::Status::OK;
  }

 private:
  std::string folder_;
  Mutex mutex_;
  Script script_;
  v1::StatusResponse status_;
  std::vector<v1::GenerateRequest> requests_;
  v1::TokenizeRequest tokenize_request_;
  Tally begun_;
  Tally cancelled_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace warpline
