// The control stream of a worker: takes assignments, sends what the stage has to say.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "proto/peer_secret.h"
#include "proto/stage.grpc.pb.h"
#include "worker/edge_service.h"
#include "worker/stage_executor.h"
#include "worker/stage_facts.h"

namespace warpline {

class ControlReactor;

// What the control streams of a worker share. Lives longer than the gRPC server.
class ControlDesk {
 public:
  struct Options {
    StageFacts facts;
    PeerSecret secret;
    // Asks the process to end with this code.
    std::function<void(int exit_code)> stop;
  };

  ControlDesk(Options options, StageExecutor& executor, EdgeGate& gate)
      : options_(std::move(options)), executor_(executor), gate_(gate) {}

  // Checks `assign` and starts its epoch. Unauthenticated; AlreadyExists while another stream has
  // this worker; FailedPrecondition for what does not fit. Nothing changes on an error, but a
  // worker that has another model file than its coordinator ends: started again it reads the file
  // anew.
  absl::Status Assign(const v1::Assign& assign, const std::shared_ptr<ControlReactor>& reactor);
  // The stream has ended or asked for the end. A worker that was assigned never outlives its
  // coordinator.
  void Left(const ControlReactor* reactor);
  void Shutdown() { options_.stop(0); }

 private:
  // True when `reactor` has the worker now.
  absl::Status Take(const v1::Assign& assign, const std::shared_ptr<ControlReactor>& reactor);

  const Options options_;
  StageExecutor& executor_;
  EdgeGate& gate_;
  Mutex mutex_;
  const ControlReactor* owner_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The reactor of a new Control stream; owns itself.
grpc::ServerBidiReactor<v1::ControlRequest, v1::ControlReply>* StartControl(ControlDesk& desk);

}  // namespace warpline
