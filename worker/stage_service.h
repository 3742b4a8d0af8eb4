// The gRPC service of a worker.
#pragma once

#include "proto/stage.grpc.pb.h"
#include "worker/control_service.h"
#include "worker/edge_service.h"

namespace warpline {

class StageService final : public v1::Stage::CallbackService {
 public:
  StageService(ControlDesk& desk, EdgeGate& gate) : desk_(desk), gate_(gate) {}

  grpc::ServerBidiReactor<v1::ControlRequest, v1::ControlReply>* Control(
      grpc::CallbackServerContext*) override {
    return StartControl(desk_);
  }
  grpc::ServerBidiReactor<v1::EdgeMessage, v1::EdgeAck>* Edge(
      grpc::CallbackServerContext*) override {
    return StartEdge(gate_);
  }

 private:
  ControlDesk& desk_;
  EdgeGate& gate_;
};

}  // namespace warpline
