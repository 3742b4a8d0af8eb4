// The edge into this stage: who may open it, and what arrives over it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "proto/peer_secret.h"
#include "proto/stage.grpc.pb.h"
#include "worker/shared_slots.h"
#include "worker/stage_executor.h"
#include "worker/step_proto.h"

namespace warpline {

class EdgeReactor;

// What a hello must say in this epoch.
struct EdgeExpectation {
  uint64_t epoch = 0;
  std::string fingerprint;
  int at_layer = 0;
  bool is_first = false;  // the sender is the coordinator: token ids alone
  int64_t slot_bytes = 0;
  EdgeLimits limits;  // but for edge slots and payload, which the hello chooses
};

struct AdmittedEdge {
  EdgeLimits limits;
  std::unique_ptr<SharedSlotsView> slots;  // null unless the payload is Payload::kSharedSlot
};

// Admits one edge in each epoch. Used by gRPC threads.
class EdgeGate {
 public:
  EdgeGate(StageExecutor& executor, const PeerSecret& secret)
      : executor_(executor), secret_(secret) {}

  // From now on hellos of this epoch are admitted; the edge of the epoch before is ended.
  void Begin(const EdgeExpectation& expectation);
  // Checks the hello; on success `reactor` is the epoch's edge. Errors: Unauthenticated;
  // Unavailable before this epoch's assignment is here (the sender tries again); FailedPrecondition
  // naming field and both values, with detail code "shm_unavailable" when the memory cannot be
  // mapped; AlreadyExists.
  absl::StatusOr<AdmittedEdge> Admit(const v1::EdgeHello& hello,
                                     const std::shared_ptr<EdgeReactor>& reactor);
  // The admitted edge carried something: it can never be opened again in its epoch, since what was
  // lost is unknown.
  void Used(const EdgeReactor* reactor);
  void Left(const EdgeReactor* reactor);

  StageExecutor& executor() { return executor_; }

 private:
  StageExecutor& executor_;
  const PeerSecret& secret_;
  Mutex mutex_;
  EdgeExpectation expectation_ ABSL_GUARDED_BY(mutex_);  // epoch 0: no assignment yet
  std::shared_ptr<EdgeReactor> current_ ABSL_GUARDED_BY(mutex_);
  bool used_ ABSL_GUARDED_BY(mutex_) = false;
};

// The reactor of a new Edge stream; owns itself.
grpc::ServerBidiReactor<v1::EdgeMessage, v1::EdgeAck>* StartEdge(EdgeGate& gate);

}  // namespace warpline
