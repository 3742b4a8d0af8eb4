#include "worker/stage_output.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_detail.h"
#include "base/status.h"
#include "kernels/non_finite.h"
#include "proto/stage_protocol.h"

namespace warpline {
namespace {

size_t PieceRows(int n_vocab) {
  const int64_t row_bytes = int64_t{n_vocab} * static_cast<int64_t>(sizeof(float));
  return static_cast<size_t>(std::clamp<int64_t>(kLogitPieceBytes / row_bytes, 1, kMaxLogitRows));
}

// The tokens of all positions up to the entry's last. A token that was drawn earlier comes back as
// the input of the next step, so nothing is appended when it is drawn.
void ExtendHistory(const StepEntry& entry, std::vector<int32_t>& history) {
  history.resize(static_cast<size_t>(entry.position));
  history.insert(history.end(), entry.token_ids.begin(), entry.token_ids.end());
}

}  // namespace

StageOutput::StageOutput(int n_vocab, FailEntry fail_entry)
    : n_vocab_(n_vocab),
      fail_entry_(std::move(fail_entry)),
      piece_rows_(PieceRows(n_vocab)),
      plans_(kMaxLogitRows),
      candidates_(kMaxLogitRows) {
  logits_.resize(static_cast<size_t>(kMaxLogitRows) * static_cast<size_t>(n_vocab_));
}

absl::Status StageOutput::Run(const Step& step, StageModel& model, StageSequences& sequences,
                              ControlSink& control) {
  int first_row = 0;
  for (const StepEntry& entry : step.entries) {
    StageSequence& sequence = sequences.at(entry.key);
    ExtendHistory(entry, sequence.history);
    if (sequence.logits_from >= 0) {
      WL_RETURN_IF_ERROR(SendLogits(step, entry, first_row, sequence.logits_from, model, control));
    }
    first_row += static_cast<int>(entry.token_ids.size());
  }
  v1::ControlReply reply;
  v1::StepResult& result = *reply.mutable_result();
  result.set_epoch(step.epoch);
  result.set_step_id(step.step_id);
  WL_RETURN_IF_ERROR(Sample(step, model, sequences, result));
  control.Send(std::move(reply));
  return absl::OkStatus();
}

// The head is read once for as many rows as the model takes, which costs more than to send them.
absl::Status StageOutput::SendLogits(const Step& step, const StepEntry& entry, int first_row,
                                     int64_t logits_from, StageModel& model, ControlSink& control) {
  const int row_count = static_cast<int>(entry.token_ids.size());
  const int skipped =
      static_cast<int>(std::clamp<int64_t>(logits_from - entry.position, 0, row_count));
  bool goes_on = true;
  for (int begin = skipped; begin < row_count && goes_on; begin += kMaxLogitRows) {
    std::vector<int32_t> rows(static_cast<size_t>(std::min(kMaxLogitRows, row_count - begin)));
    std::iota(rows.begin(), rows.end(), first_row + begin);
    const absl::Span<float> logits(logits_.data(), rows.size() * static_cast<size_t>(n_vocab_));
    WL_RETURN_IF_ERROR(model.Logits(rows, logits));
    goes_on = SendPieces(step, entry, entry.position + begin, logits, control);
  }
  return absl::OkStatus();
}

bool StageOutput::SendPieces(const Step& step, const StepEntry& entry, int64_t position,
                             absl::Span<const float> logits, ControlSink& control) {
  const size_t width = static_cast<size_t>(n_vocab_);
  while (!logits.empty()) {
    const absl::Span<const float> values = logits.subspan(0, piece_rows_ * width);
    logits.remove_prefix(values.size());
    if (HasNonFinite(values)) {
      fail_entry_(step, entry,
                  WithDetail(absl::InternalError("the logits are not finite"),
                             {.code = "numerical_error"}));
      return false;
    }
    v1::ControlReply reply;
    v1::LogitRows& piece = *reply.mutable_logits();
    piece.set_epoch(step.epoch);
    piece.set_sequence_id(entry.key.sequence_id);
    piece.set_generation(entry.key.generation);
    piece.set_first_position(static_cast<uint64_t>(position));
    piece.set_row_count(static_cast<uint32_t>(values.size() / width));
    piece.set_values(values.data(), values.size() * sizeof(float));
    if (!control.SendLarge(std::move(reply))) return false;
    position += static_cast<int64_t>(values.size() / width);
  }
  return true;
}

absl::Status StageOutput::Sample(const Step& step, StageModel& model, StageSequences& sequences,
                                 v1::StepResult& result) {
  std::vector<SampleRow> wanted;
  int32_t next_row = 0;
  for (const StepEntry& entry : step.entries) {
    next_row += static_cast<int32_t>(entry.token_ids.size());
    StageSequence& sequence = sequences.at(entry.key);
    if (!entry.sample || sequence.failed) continue;
    const absl::Status planned =
        PlanDraw(sequence.sampling, sequence.history, n_vocab_, plans_[wanted.size()]);
    if (!planned.ok()) {
      fail_entry_(step, entry, planned);
      continue;
    }
    wanted.push_back({.entry = &entry, .sequence = &sequence, .row = next_row - 1});
    if (wanted.size() < kMaxLogitRows) continue;
    WL_RETURN_IF_ERROR(DrawTokens(step, wanted, model, result));
    wanted.clear();
  }
  return DrawTokens(step, wanted, model, result);
}

absl::Status StageOutput::DrawTokens(const Step& step, absl::Span<const SampleRow> rows,
                                     StageModel& model, v1::StepResult& result) {
  if (rows.empty()) return absl::OkStatus();
  std::vector<int32_t> numbers;
  std::vector<CandidateQuery> queries;
  for (size_t index = 0; index < rows.size(); ++index) {
    numbers.push_back(rows[index].row);
    queries.push_back(plans_[index].query);
  }
  WL_RETURN_IF_ERROR(
      model.Candidates(numbers, queries, absl::MakeSpan(candidates_).subspan(0, rows.size())));
  for (size_t index = 0; index < rows.size(); ++index) {
    const StepEntry& entry = *rows[index].entry;
    StageSequence& sequence = *rows[index].sequence;
    absl::Status read;
    const auto fetch = [&]() -> absl::StatusOr<absl::Span<const float>> {
      const auto row = absl::MakeSpan(logits_).subspan(0, static_cast<size_t>(n_vocab_));
      read = model.EditedLogits(static_cast<int>(index), row);
      if (!read.ok()) return read;
      return row;
    };
    const absl::StatusOr<int32_t> token =
        DrawToken(candidates_[index], sequence.sampling, n_vocab_,
                  static_cast<int64_t>(sequence.history.size()), fetch);
    WL_RETURN_IF_ERROR(read);  // The model's, not the entry's.
    if (!token.ok()) {
      fail_entry_(step, entry, token.status());
      continue;
    }
    sequence.drawn = *token;
    v1::SampledToken& drawn = *result.add_tokens();
    drawn.set_sequence_id(entry.key.sequence_id);
    drawn.set_generation(entry.key.generation);
    drawn.set_token_id(*token);
  }
  return absl::OkStatus();
}

}  // namespace warpline
