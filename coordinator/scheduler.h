// Chooses the next step: a prompt chunk of one sequence or a decode micro-batch of several. Pure:
// the engine carries out what is chosen here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace warpline {

enum class StepKind { kPrompt, kDecode };

// What the choice needs to know of one running sequence. Rows [scheduled_count, token_count) are
// known tokens that no step has carried yet.
struct SchedulableSequence {
  int64_t prompt_end = 0;       // Rows before it go in chunks, rows from it on by decode steps.
  int64_t scheduled_count = 0;  // Rows that steps have carried, in flight or done.
  int64_t token_count = 0;
  uint64_t last_step_id = 0;   // Of its latest step; 0: none yet.
  int64_t max_chunk_rows = 0;  // Of this sequence, at most that of the engine.
  bool blocked = false;        // Its reader is behind: nothing further for now.
  // The token after the known ones is being drawn, and its row may be sent before it is known.
  bool may_run_ahead = false;
};

struct SchedulerLimits {
  int stage_count = 1;
  int max_chunk_rows = 512;
  int max_decode_rows = 8;
  // One step for each stage to compute; a single stage, which knows what it draws, finds its next
  // one waiting.
  int max_decode_steps() const { return std::max(2, stage_count); }
  // One step for each stage to compute, and one that waits at the first.
  int max_steps() const { return stage_count + 1; }
};

struct InFlight {
  int steps = 0;
  int decode_steps = 0;
  StepKind last_kind = StepKind::kDecode;  // Of the step sent last.
};

struct ChosenRows {
  int index = 0;  // Into the sequences given.
  int64_t row_count = 0;
};

struct ChosenStep {
  StepKind kind = StepKind::kPrompt;
  std::vector<ChosenRows> rows;  // One of a prompt step, at least one of a decode step.
};

// Nothing when no step may be sent now. Prompts are read in chunks without waiting for the chunk
// before; among several prompts the one served longest ago comes first. Decoding sequences go into
// as many micro-batches as there are stages; on a single stage all of them share one, and the next
// one may follow before the tokens of the last are known. Where both could go, prompt and decode
// steps alternate.
std::optional<ChosenStep> ChooseStep(absl::Span<const SchedulableSequence> sequences,
                                     const InFlight& in_flight, const SchedulerLimits& limits);

}  // namespace warpline
