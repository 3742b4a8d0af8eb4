#include "coordinator/scheduler.h"

#include <algorithm>

namespace warpline {
namespace {

bool HasPromptRows(const SchedulableSequence& sequence) {
  return sequence.scheduled_count < sequence.prompt_end && !sequence.blocked;
}

bool HasDecodeRow(const SchedulableSequence& sequence) {
  const int64_t end = sequence.token_count + (sequence.may_run_ahead ? 1 : 0);
  return sequence.scheduled_count >= sequence.prompt_end && end > sequence.scheduled_count &&
         !sequence.blocked;
}

std::optional<ChosenStep> PromptStep(absl::Span<const SchedulableSequence> sequences,
                                     const SchedulerLimits& limits) {
  int chosen = -1;
  for (int index = 0; index < static_cast<int>(sequences.size()); ++index) {
    if (!HasPromptRows(sequences[index])) continue;
    if (chosen < 0 || sequences[index].last_step_id < sequences[chosen].last_step_id) {
      chosen = index;
    }
  }
  if (chosen < 0) return std::nullopt;
  const SchedulableSequence& sequence = sequences[chosen];
  const int64_t chunk = std::min<int64_t>(limits.max_chunk_rows, sequence.max_chunk_rows);
  const int64_t rows = std::min(chunk, sequence.prompt_end - sequence.scheduled_count);
  return ChosenStep{.kind = StepKind::kPrompt, .rows = {{.index = chosen, .row_count = rows}}};
}

std::optional<ChosenStep> DecodeStep(absl::Span<const SchedulableSequence> sequences,
                                     const InFlight& in_flight, const SchedulerLimits& limits) {
  if (in_flight.decode_steps >= limits.max_decode_steps()) return std::nullopt;
  std::vector<int> ready;
  int decoding = 0;
  for (int index = 0; index < static_cast<int>(sequences.size()); ++index) {
    if (sequences[index].scheduled_count >= sequences[index].prompt_end) ++decoding;
    if (HasDecodeRow(sequences[index])) ready.push_back(index);
  }
  if (ready.empty()) return std::nullopt;
  // Stable: of equals the earlier admitted first.
  std::stable_sort(ready.begin(), ready.end(), [&sequences](int a, int b) {
    return sequences[a].last_step_id < sequences[b].last_step_id;
  });
  const int group = (decoding + limits.stage_count - 1) / limits.stage_count;
  const size_t count = std::min<size_t>(ready.size(), std::min(group, limits.max_decode_rows));
  ChosenStep step{.kind = StepKind::kDecode};
  for (size_t place = 0; place < count; ++place) {
    step.rows.push_back({.index = ready[place], .row_count = 1});
  }
  return step;
}

}  // namespace

std::optional<ChosenStep> ChooseStep(absl::Span<const SchedulableSequence> sequences,
                                     const InFlight& in_flight, const SchedulerLimits& limits) {
  if (in_flight.steps >= limits.max_steps()) return std::nullopt;
  if (in_flight.last_kind == StepKind::kPrompt) {
    if (auto step = DecodeStep(sequences, in_flight, limits)) return step;
    return PromptStep(sequences, limits);
  }
  if (auto step = PromptStep(sequences, limits)) return step;
  return DecodeStep(sequences, in_flight, limits);
}

}  // namespace warpline
