// For tests: a worker in this process that speaks proto/stage.proto and computes nothing.
#pragma once

#include <grpcpp/server.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "proto/stage.grpc.pb.h"

namespace warpline {

// The only stage of a pipeline, or one whose next stage is of no interest. The token after token t
// is t + 1. Thread-safe.
class FakeWorker final : public v1::Stage::Service {
 public:
  struct Behaviour {
    bool silent = false;                                     // never says hello
    std::optional<float> stops_loading_at;                   // never serves
    std::function<void(v1::Hello&)> change_hello;            // before it is sent
    bool hold_results = false;                               // until ReleaseResults
    std::function<bool(const v1::StepEntryMessage&)> fails;  // with non-finite values
    bool repeat_results = false;                             // each result is sent twice
  };

  // `address` is unix:/path.
  explicit FakeWorker(const std::string& address);
  ~FakeWorker() override;

  void Behave(Behaviour behaviour);
  // What is held goes out, and nothing is held any more.
  void ReleaseResults();
  // All messages of edges so far, hellos left out.
  std::vector<v1::EdgeMessage> Received();
  // Waits until Received() fulfils the condition, at most 10 s.
  bool Await(const std::function<bool(const std::vector<v1::EdgeMessage>&)>& condition);
  int assignments() const { return assignments_; }

  grpc::Status Control(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::ControlReply, v1::ControlRequest>* stream) override;
  grpc::Status Edge(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::EdgeAck, v1::EdgeMessage>* stream) override;

 private:
  using ControlStream = grpc::ServerReaderWriter<v1::ControlReply, v1::ControlRequest>;

  void Answer(const v1::StepMessage& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Reply(const v1::ControlReply& reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar received_changed_;
  Behaviour behaviour_ ABSL_GUARDED_BY(mutex_);
  ControlStream* control_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<v1::ControlReply> held_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::EdgeMessage> received_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, int32_t> drawn_ ABSL_GUARDED_BY(mutex_);  // last, for each sequence
  std::atomic<int> assignments_{0};
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace warpline
