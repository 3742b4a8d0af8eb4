// What the engine thread is told: requests from the services, replies and ends of the streams to
// the workers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <variant>

#include "absl/status/status.h"
#include "base/bounded_queue.h"
#include "coordinator/sequence.h"
#include "proto/inference.pb.h"
#include "proto/stage.pb.h"

namespace warpline {

// One stream to a worker. Streams are numbered, so that a late event of an earlier one is told.
struct LinkId {
  int stage = 0;
  bool is_edge = false;  // else the control stream
  uint64_t number = 0;

  friend bool operator==(const LinkId&, const LinkId&) = default;
};

struct SubmitEvent {
  uint64_t sequence_id = 0;
  SequenceRequest request;
};
struct CancelEvent {
  uint64_t sequence_id = 0;
  absl::Status why;
};
// A blocked sink has room again.
struct ResumeEvent {};
struct ControlReplyEvent {
  LinkId link;
  v1::ControlReply reply;
};
struct EdgeAckEvent {
  LinkId link;
  v1::EdgeAck ack;
};
struct LinkEndedEvent {
  LinkId link;
  absl::Status status;
  // The stream itself, so that it goes on the engine thread: with it may go the last reference to
  // its channel, which gRPC's own threads must not drop.
  std::shared_ptr<void> stream;
};
struct StatusEvent {
  std::function<void(v1::StatusResponse)> answer;  // Called on the engine thread.
};
// No new requests from now on; `drained` is called when none is left.
struct DrainEvent {
  std::function<void()> drained;
};
// All requests end with `status`.
struct FailAllEvent {
  absl::Status status;
};
// Workers are told to stop; the engine thread ends.
struct StopEvent {};

using EngineEvent =
    std::variant<SubmitEvent, CancelEvent, ResumeEvent, ControlReplyEvent, EdgeAckEvent,
                 LinkEndedEvent, StatusEvent, DrainEvent, FailAllEvent, StopEvent>;

// Shared with the streams, which may end after the engine.
using EngineInbox = BoundedQueue<EngineEvent>;

}  // namespace warpline
