// The KV slots of a stage: which pages each sequence owns and how many positions it holds. Checks
// steps before they run.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "worker/step.h"

namespace warpline {

struct SlotLimits {
  int slot_count = 1;
  int64_t page_count = 0;   // page ids are below it
  int64_t max_context = 0;  // positions of one sequence
  int max_rows = 0;         // rows of one step
  int n_vocab = 0;          // token ids are below it
};

// Page numbers come from the coordinator and are the same on all stages; nothing of a step is used
// before Check passed. Used by the stage executor's thread alone.
class SlotTable {
 public:
  explicit SlotTable(const SlotLimits& limits);

  absl::Status Reset(int kv_slot);
  void ResetAll();

  // InvalidArgument, naming the entry and both values, when the step does not continue what the
  // slots hold; the slots are not changed then.
  absl::Status Check(const Step& step) const;
  // Appends the new pages and counts the rows in. Only after Check returned OK for this step. The
  // spans in `sequences` live until the next call of a non-const method.
  void Advance(const Step& step, std::vector<StepSequence>& sequences);

 private:
  struct Slot {
    std::vector<int32_t> pages;  // page i holds positions [i * kPageTokens, (i + 1) * kPageTokens)
    int64_t position = 0;        // of the next row
  };

  absl::Status CheckEntry(const StepEntry& entry) const;
  absl::Status CheckPages(const StepEntry& entry, const Slot& slot) const;

  SlotLimits limits_;
  std::vector<Slot> slots_;  // [slot_count]
};

}  // namespace warpline
