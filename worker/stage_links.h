// What a stage is connected with: the share it was assigned, the edge behind it, the edge before
// it, its coordinator. The executor knows these alone; gRPC stays on the other side.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "model/layer_range.h"
#include "proto/stage.pb.h"
#include "worker/step.h"

namespace warpline {

// A checked v1::Assign.
struct StageAssignment {
  uint64_t epoch = 0;
  int stage = 0;
  int stage_count = 1;
  LayerRange layers;
  std::string next_address;  // empty on the last stage
  v1::EdgeKind next_edge = v1::EDGE_KIND_AUTO;
  KvType kv_type = KvType::kF16;
  int slot_count = 1;
  int64_t page_count = 0;
  int64_t max_context = 0;
  int64_t configured_context = 0;
  int max_chunk_rows = 0;

  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage == stage_count - 1; }
};

// The edge into this stage, for giving credits back. Shared with gRPC's callbacks.
class Inlet {
 public:
  virtual ~Inlet() = default;
  // The rows of the step are not needed any more. Called from the executor's thread; never blocks.
  virtual void Acknowledge(uint64_t step_id, int edge_slot) = 0;
};

// The edge to the next stage. All but Break are called from the executor's thread.
class Outlet {
 public:
  virtual ~Outlet() = default;
  // Dials and says hello until the next stage takes it. Blocks; ended by Break.
  virtual absl::Status Open() = 0;
  // How payloads travel: "shm" or "grpc".
  virtual std::string kind() const = 0;
  // Room for `value_count` values of the next step, waiting for a credit. A reserved place that was
  // not sent is given again. Unavailable once the edge is lost.
  virtual absl::StatusOr<absl::Span<float>> Reserve(int64_t value_count) = 0;
  // Sends the step with the values written to the reserved place.
  virtual absl::Status SendStep(const Step& step) = 0;
  virtual absl::Status SendOpen(const OpenSequence& open) = 0;
  virtual absl::Status SendClose(const CloseSequence& close) = 0;
  // Gives the edge up and wakes who waits. Any thread.
  virtual void Break(const absl::Status& status) = 0;
};

// The control stream of the coordinator.
class ControlSink {
 public:
  virtual ~ControlSink() = default;
  // Never blocks. Without effect once the stream has ended.
  virtual void Send(v1::ControlReply reply) = 0;
  // For replies of many bytes: waits while several are under way. False once the stream has ended.
  virtual bool SendLarge(v1::ControlReply reply) = 0;
  // Ends the stream with `status` after what was sent.
  virtual void End(const absl::Status& status) = 0;
};

// A step as it arrived. `rows` [row_count, residual_width] f32, empty on the first stage, lies in
// `payload` or in memory shared with the sender until the step is acknowledged.
struct IncomingStep {
  Step step;
  int edge_slot = 0;
  std::string payload;
  absl::Span<const float> rows;
};

}  // namespace warpline
