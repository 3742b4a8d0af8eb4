// What the n-gram layer of a stage reads for its steps: each token's rows, fetched ahead where the
// tokens are known early.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "model/ngram_rows.h"
#include "model/ple_spec.h"
#include "worker/ple/ngram_reader.h"
#include "worker/step.h"

namespace warpline {

// Keeps the last ids of each slot, so that rows do not depend on how a sequence is cut into steps.
// Owned and used by the executor's thread.
class NgramFeed {
 public:
  // `reader` must outlive the feed.
  NgramFeed(const PleSpec& spec, NgramReader& reader, int slot_count);

  // A new sequence begins in the slot. Prefetch may have been told of it before.
  void ResetSlot(int kv_slot);
  void ResetAll();

  // Tells of a step that Fetch will be called for; its disk reads begin. Steps may be told of
  // several steps ahead, in their order; a row at position 0 begins a new sequence. Entries that do
  // not continue what was told of their slot, or whose token is still to be drawn, are left to
  // Fetch.
  void Prefetch(const Step& step);

  // The decoded rows of the step's tokens, head after head: out[step.RowCount(), head_count *
  // row_width]. Waits for the disk. `step` has passed SlotTable::Check. Errors: those of
  // NgramReader::Fetch; then the slots' last ids are as before.
  absl::Status Fetch(const Step& step, absl::Span<float> out);

 private:
  struct Slot {
    NgramContext context;  // of the next row to run
    int64_t position = 0;
    NgramContext ahead_context;  // of the next row that was not told of yet
    int64_t ahead_position = 0;
    bool is_told_of_next = false;  // ahead_* are of a sequence that has not begun to run
  };

  // Appends the rows of an entry's tokens to rows_.
  void AddRows(const NgramContext& context, const StepEntry& entry);

  const PleSpec spec_;
  NgramReader& reader_;
  std::vector<Slot> slots_;
  std::vector<int64_t> rows_;  // of the call that runs
};

}  // namespace warpline
