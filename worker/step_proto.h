// Between the messages of an edge and worker/step.h. All checks of what comes in are here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/stage.pb.h"
#include "worker/stage_links.h"
#include "worker/step.h"

namespace warpline {

// Where the rows of a step are.
enum class Payload { kNone, kBytes, kSharedSlot };

struct EdgeLimits {
  uint64_t epoch = 0;
  int slot_count = 0;  // of sequences
  int64_t page_count = 0;
  int64_t max_context = 0;
  int max_chunk_rows = 0;
  int width = 0;
  int n_vocab = 0;
  int edge_slot_count = 0;
  bool draws = false;  // on the only stage, which may be told to feed what it draws
  Payload payload = Payload::kNone;
};

// Checks and converts the messages of one edge, in their order. Used by that edge's callbacks, one
// at a time. Every error is InvalidArgument and names the field with the value and what was
// expected; after one the edge must be ended.
class EdgeReader {
 public:
  explicit EdgeReader(const EdgeLimits& limits) : limits_(limits) {}

  absl::StatusOr<OpenSequence> Open(const v1::OpenMessage& message);
  // Takes the activations out of `message`. `rows` of the result is set for Payload::kBytes, when
  // the result has got its final place, by RowsOf.
  absl::StatusOr<IncomingStep> TakeStep(v1::StepMessage& message);
  absl::StatusOr<CloseSequence> Close(const v1::CloseMessage& message);

 private:
  struct Sequence {
    int kv_slot = 0;
    int64_t next_position = 0;
    int64_t page_count = 0;
    std::optional<uint64_t> last_step;
    bool has_draw = false;  // after its last row
  };

  absl::StatusOr<StepEntry> TakeEntry(const v1::StepEntryMessage& message,
                                      const v1::StepMessage& step);
  absl::Status CheckPayload(const v1::StepMessage& message, int row_count) const;

  const EdgeLimits limits_;
  std::optional<uint64_t> last_step_id_;
  absl::flat_hash_map<SequenceKey, Sequence> sequences_;
  absl::flat_hash_map<int, SequenceKey> slots_;  // in use
};

// The values of a payload of bytes.
absl::Span<const float> RowsOf(const std::string& payload);

v1::EdgeMessage ToProto(const OpenSequence& open);
v1::EdgeMessage ToProto(const CloseSequence& close);
// Without activations.
v1::EdgeMessage ToProto(const Step& step, int edge_slot);

}  // namespace warpline
