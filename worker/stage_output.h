// The end of the last stage: logits, the next tokens, and what evaluation wants to see.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/sampler.h"
#include "worker/stage_links.h"
#include "worker/stage_model.h"
#include "worker/stage_sequences.h"
#include "worker/step.h"

namespace warpline {

// Most rows of one StageModel::Logits call.
constexpr int kMaxLogitRows = 32;

// Owned and used by the executor's thread.
class StageOutput {
 public:
  // Called for an entry that cannot go on; it shall mark the sequence as failed.
  using FailEntry =
      std::function<void(const Step& step, const StepEntry& entry, const absl::Status& status)>;

  StageOutput(int n_vocab, FailEntry fail_entry);

  // Logits of the step that `model` ran last: LogitRows for entries whose sequence wants them, then
  // the StepResult with the tokens drawn. Failures of single entries are reported and leave no
  // token; an error is the model's.
  absl::Status Run(const Step& step, StageModel& model, StageSequences& sequences,
                   ControlSink& control);

 private:
  // One entry that wants a token, and its place among the rows of the step.
  struct SampleRow {
    const StepEntry* entry = nullptr;
    StageSequence* sequence = nullptr;
    int32_t row = 0;
  };

  absl::Status SendLogits(const Step& step, const StepEntry& entry, int first_row,
                          int64_t logits_from, StageModel& model, ControlSink& control);
  // False when nothing of this entry is to be computed any more: it failed, or nobody listens.
  bool SendPieces(const Step& step, const StepEntry& entry, int64_t position,
                  absl::Span<const float> logits, ControlSink& control);
  absl::Status Sample(const Step& step, StageModel& model, StageSequences& sequences,
                      v1::StepResult& result);
  // One token for each of at most kMaxLogitRows rows.
  absl::Status DrawTokens(const Step& step, absl::Span<const SampleRow> rows, StageModel& model,
                          v1::StepResult& result);

  const int n_vocab_;
  const FailEntry fail_entry_;
  const size_t piece_rows_;    // of logits that are sent together
  std::vector<float> logits_;  // [kMaxLogitRows, n_vocab]
  // Of the rows that are drawn together; kept for their memory.
  std::vector<DrawPlan> plans_;            // [kMaxLogitRows]
  std::vector<RowCandidates> candidates_;  // [kMaxLogitRows]
};

}  // namespace warpline
