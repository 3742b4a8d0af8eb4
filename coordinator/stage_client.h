// The coordinator's gRPC streams to one worker: control, and on stage 0 the edge.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "coordinator/engine_event.h"
#include "proto/stage.pb.h"

namespace warpline {

// Used by the engine thread; replies and ends come as events into its inbox. Dialling goes on for
// as long as a stream is open, so a stream may wait for its worker.
class StageClient {
 public:
  StageClient(int stage, const std::string& address, std::shared_ptr<EngineInbox> inbox);
  // Cancels what is open. Events of it may still come.
  ~StageClient();

  // Opens a stream whose first message is given; the earlier stream of that kind is cancelled.
  LinkId OpenControl(v1::ControlRequest first);
  LinkId OpenEdge(v1::EdgeMessage first);
  // Dropped when the stream is not open.
  void SendControl(v1::ControlRequest request);
  void SendEdge(v1::EdgeMessage message);
  void CancelControl();
  void CancelEdge();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warpline
