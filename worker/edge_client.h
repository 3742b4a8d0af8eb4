// The edge to the next stage: dials it, says hello, sends opens, steps and closes, and takes
// credits back.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "proto/peer_secret.h"
#include "proto/stage.grpc.pb.h"
#include "worker/shared_slots.h"
#include "worker/stage_links.h"

namespace warpline {

struct EdgeTarget {
  std::string address;  // of the next stage's gRPC server
  // As for the hello; `kind` AUTO takes shared memory for an address of this machine and gRPC where
  // that fails.
  v1::EdgeKind kind = v1::EDGE_KIND_AUTO;
  uint64_t epoch = 0;
  std::string fingerprint;
  int at_layer = 0;
  int width = 0;
  int64_t slot_bytes = 0;
};

class EdgeClient final : public Outlet {
 public:
  // `on_lost` is called once, by a gRPC thread, when an edge that was open ends.
  EdgeClient(EdgeTarget target, const PeerSecret& secret,
             std::function<void(const absl::Status&)> on_lost);
  ~EdgeClient() override;

  absl::Status Open() override;
  std::string kind() const override;
  absl::StatusOr<absl::Span<float>> Reserve(int64_t value_count) override;
  absl::Status SendStep(const Step& step) override;
  absl::Status SendOpen(const OpenSequence& open) override;
  absl::Status SendClose(const CloseSequence& close) override;
  void Break(const absl::Status& status) override;

 private:
  class Call;

  absl::Status Dial(v1::EdgeKind kind);
  absl::Status DialUntilAdmitted(v1::EdgeKind kind);
  absl::StatusOr<v1::EdgeMessage> Hello(v1::EdgeKind kind);
  absl::Status Send(v1::EdgeMessage message);

  const EdgeTarget target_;
  const PeerSecret secret_;
  const std::function<void(const absl::Status&)> on_lost_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Stage::Stub> stub_;
  Mutex mutex_;
  CondVar broken_changed_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Call> call_ ABSL_GUARDED_BY(mutex_);

  // Below: the executor thread's own, after Open.
  std::shared_ptr<Call> open_call_;
  std::unique_ptr<SharedSlots> slots_;  // null with gRPC payloads
  std::string bytes_;                   // the reserved place with gRPC payloads
};

}  // namespace warpline
