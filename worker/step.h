// What travels over an edge, in plain structs: open and close of sequences, and steps of rows.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "worker/sampling_params.h"

namespace warpline {

struct SequenceKey {
  uint64_t sequence_id = 0;
  uint32_t generation = 0;

  friend bool operator==(const SequenceKey&, const SequenceKey&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const SequenceKey& key) {
    return H::combine(std::move(state), key.sequence_id, key.generation);
  }
};

struct OpenSequence {
  SequenceKey key;
  int kv_slot = 0;
  SamplingParams sampling;
  // Evaluation: logits of every row at or after this position go to the coordinator; -1: none.
  int64_t logits_from = -1;
};

struct CloseSequence {
  SequenceKey key;
  int kv_slot = 0;
};

// Consecutive rows of one sequence.
struct StepEntry {
  SequenceKey key;
  int kv_slot = 0;
  int64_t position = 0;            // of the first row
  std::vector<int32_t> token_ids;  // one for each row; kTokenDrawnBefore until the step runs
  std::vector<int32_t> new_pages;  // appended to the slot's page list before the rows run
  bool sample = false;             // the last stage draws a token after the last row
};

struct Step {
  uint64_t epoch = 0;
  uint64_t step_id = 0;
  StepKind kind = StepKind::kPrompt;
  std::vector<StepEntry> entries;

  int RowCount() const {
    int count = 0;
    for (const StepEntry& entry : entries) count += static_cast<int>(entry.token_ids.size());
    return count;
  }
};

}  // namespace warpline
