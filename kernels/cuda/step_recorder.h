// Decode steps as CUDA graphs: a step of a shape that came before is one launch, not a thousand.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/raii.h"

namespace warpline::cuda {

// What the launches of a step depend on, beside the model.
struct StepShape {
  int32_t rows = 0;
  int32_t sequences = 0;
  int32_t max_context = 0;
  const void* tables = nullptr;  // where the step's tables lie

  std::tuple<int32_t, int32_t, int32_t, const void*> key() const {
    return {rows, sequences, max_context, tables};
  }
};

// The first step of a shape runs as it is and allocates what it needs; the second is recorded, all
// others replay the record: their ops are not run. Those of the first replay are compared with the
// recorded ones; later ones may leave them out. Belongs to one device. Used by one thread and one
// stream.
class StepRecorder {
 public:
  // Starts a step that may be recorded.
  void Begin(const StepShape& shape);
  // A step that is run as it is.
  void BeginPlain() { mode_ = Mode::kPlain; }
  // Something that records rely on has changed.
  void Forget() { records_.clear(); }

  bool is_recording() const { return mode_ == Mode::kRecord; }
  bool is_replay() const { return mode_ == Mode::kReplay; }
  bool is_recorded() const { return is_recording() || is_replay(); }
  // Whether ops must be called.
  bool needs_ops() const { return !is_replay() || !record_->is_checked; }
  // What the caller wants to know again when the step that is recorded is replayed.
  void set_note(int64_t note) { record_->note = note; }
  int64_t note() const { return record_->note; }
  // Whether host memory cannot be copied right now, because a step is recorded or replayed.
  bool is_closed() const { return is_recorded() && op_count_ > 0; }

  // To be called by each op; `digest` is made of all that its launches depend on. False: it must
  // not launch anything. Internal when a replay differs from its record.
  absl::StatusOr<bool> EnterOp(uint64_t digest, cudaStream_t stream);
  // Ends a step that failed: what was recorded of it is thrown away.
  void Abandon(cudaStream_t stream);
  // Ends the step; launches the graph of one that is recorded or replayed.
  absl::Status End(cudaStream_t stream);

 private:
  enum class Mode { kPlain, kFirst, kRecord, kReplay };
  struct Record {
    bool is_made = false;
    bool is_too_large = false;  // for the memory that is left: such steps are run as they are
    bool is_checked = false;    // it was replayed for the same ops
    uint64_t digest = 0;        // of all ops
    int64_t note = 0;
    Graph graph;
  };

  Mode mode_ = Mode::kPlain;
  Record* record_ = nullptr;
  uint64_t digest_ = 0;
  int64_t op_count_ = 0;
  std::map<decltype(StepShape().key()), Record> records_;
};

// Mixes values into a digest.
inline uint64_t Digest(uint64_t digest, uint64_t value) {
  uint64_t z = (digest ^ value) + 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace warpline::cuda
