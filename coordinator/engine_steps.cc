// The engine's daily round: what steps gave, who may run, what goes out next.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_detail.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/engine.h"
#include "proto/stage_protocol.h"

namespace warpline {
namespace {

constexpr char kNumericalError[] = "numerical_error";
constexpr auto kReadinessInterval = std::chrono::seconds(2);

absl::Status StatusOf(const v1::StepFailure& failure) {
  auto code = static_cast<absl::StatusCode>(failure.code());
  if (failure.detail_code() == kNumericalError || failure.code() == 0) {
    code = absl::StatusCode::kInternal;
  }
  return WithDetail(absl::Status(code, failure.message()), {.code = failure.detail_code()});
}

}  // namespace

void Engine::OnResult(const v1::StepResult& result) {
  const auto found = in_flight_.find(result.step_id());
  if (found == in_flight_.end()) {
    metrics_.CountStaleResult();
    return;
  }
  const SentStep step = std::move(found->second);
  in_flight_.erase(found);
  --in_flight_counts_.steps;
  if (step.kind == StepKind::kDecode) --in_flight_counts_.decode_steps;
  for (const StepEntry& entry : step.entries) {
    Sequence* const sequence = FindLive(entry.sequence_id, entry.generation);
    if (sequence == nullptr) continue;
    sequence->cached_count += entry.row_count;
    if (step.kind != StepKind::kPrompt || sequence->is_warm_up) continue;
    metrics_.CountPromptTokens(entry.row_count);
    sequence->request.sink->OnPromptProgress(sequence->cached_count);
    to_flush_.push_back(sequence->request.sink);
  }
  for (const v1::SampledToken& token : result.tokens()) {
    Sequence* const sequence = FindLive(token.sequence_id(), token.generation());
    if (sequence == nullptr) continue;  // It ended while the step was under way.
    if (!sequence->awaits_token()) {
      metrics_.CountStaleResult();
    } else {
      AcceptToken(*sequence, token.token_id());
    }
  }
}

void Engine::AcceptToken(Sequence& sequence, int32_t token_id) {
  if (token_id < 0 || token_id >= options_.vocab_size) {
    Finish(sequence,
           absl::InternalError(
               absl::StrCat("token id ", token_id, " of ", options_.vocab_size, " was drawn")),
           FinishKind::kStop);
    return;
  }
  sequence.tokens.push_back(token_id);
  if (sequence.is_warm_up) return Finish(sequence, absl::OkStatus(), FinishKind::kLength);
  const SteadyTime now = Now();
  const double seconds = std::chrono::duration<double>(now - sequence.progress_at).count();
  if (sequence.generated_count() == 1) {
    metrics_.ObserveTimeToFirstToken(seconds);
  } else {
    metrics_.ObserveInterToken(seconds);
  }
  sequence.progress_at = now;
  metrics_.CountGeneratedToken();
  switch (sequence.request.sink->OnToken(token_id)) {
    case Verdict::kStop:
      return Finish(sequence, absl::OkStatus(), FinishKind::kStop);
    case Verdict::kSlowReader:
      metrics_.CountSlowClient();
      return Finish(sequence, absl::ResourceExhaustedError("the client reads too slowly"),
                    FinishKind::kStop);
    case Verdict::kContinue:
      break;
  }
  if (sequence.generated_count() >= sequence.request.max_tokens) {
    return Finish(sequence, absl::OkStatus(), FinishKind::kLength);
  }
  to_flush_.push_back(sequence.request.sink);
}

void Engine::OnFailure(int stage, const v1::StepFailure& failure) {
  const absl::Status status = StatusOf(failure);
  if (absl::IsUnavailable(status)) {
    // Nothing of this epoch can go on.
    Apply(pipeline_.OnEdgeFailure(stage));
    return;
  }
  Sequence* const sequence = FindLive(failure.sequence_id(), failure.generation());
  if (sequence == nullptr) {
    metrics_.CountStaleResult();
    return;
  }
  LogWarning("sequence=", failure.sequence_id(), " step=", failure.step_id(),
             " failed: ", status.ToString());
  if (failure.detail_code() == kNumericalError) metrics_.CountNonFinite();
  Finish(*sequence, status, FinishKind::kStop);
}

void Engine::OnClosed(const v1::SequenceClosed& closed) {
  for (auto place = running_.begin(); place != running_.end(); ++place) {
    const Sequence& sequence = **place;
    if (sequence.id != closed.sequence_id() || !sequence.closing ||
        sequence.slot.generation != closed.generation()) {
      continue;
    }
    cache_.Return(sequence.slot.kv_slot, sequence.pages);
    running_.erase(place);
    return;
  }
  metrics_.CountStaleResult();
}

void Engine::OnLogits(v1::LogitRows& rows) {
  Sequence* const sequence = FindLive(rows.sequence_id(), rows.generation());
  if (sequence == nullptr || sequence->request.logits_from < 0) {
    metrics_.CountStaleResult();
    return;
  }
  const auto expected = static_cast<uint64_t>(sequence->request.logits_from + sequence->logit_rows);
  const uint64_t row_bytes = static_cast<uint64_t>(options_.vocab_size) * 4;
  if (rows.first_position() != expected || rows.values().size() != rows.row_count() * row_bytes) {
    Finish(*sequence,
           absl::InternalError(absl::StrCat("logits of position ", rows.first_position(),
                                            " came where ", expected, " was expected")),
           FinishKind::kStop);
    return;
  }
  sequence->logit_rows += rows.row_count();
  sequence->request.sink->OnLogits(std::move(rows));
  if (sequence->logit_rows >= sequence->expected_logit_rows()) {
    Finish(*sequence, absl::OkStatus(), FinishKind::kLength);
  } else {
    to_flush_.push_back(sequence->request.sink);
  }
}

void Engine::Finish(Sequence& sequence, const absl::Status& status, FinishKind kind) {
  if (sequence.is_warm_up) {
    FinishWarmUp(status);
  } else {
    metrics_.CountRequest(status);
    sequence.request.sink->OnFinished(status, kind);
    to_flush_.push_back(std::move(sequence.request.sink));
  }
  if (!sequence.has_slot() || sequence.closing) return;
  sequence.closing = true;
  v1::CloseMessage close;
  close.set_sequence_id(sequence.id);
  close.set_generation(sequence.slot.generation);
  close.set_kv_slot(sequence.slot.kv_slot);
  pipeline_.SendClose(std::move(close));
}

void Engine::Admit() {
  while (pipeline_.is_open() && !queue_.empty()) {
    Sequence& sequence = *queue_.front();
    if (!ready_ && !sequence.is_warm_up) return;
    // Everything that it can ever need, so that it never waits for pages half way.
    const int64_t page_count = PagesFor(sequence.most_rows());
    if (!cache_.CanTake(page_count)) return;
    sequence.slot = cache_.TakeSlot();
    sequence.pages = cache_.TakePages(page_count);
    v1::OpenMessage open;
    open.set_sequence_id(sequence.id);
    open.set_generation(sequence.slot.generation);
    open.set_kv_slot(sequence.slot.kv_slot);
    *open.mutable_sampling() = sequence.request.sampling;
    open.set_logits_from(sequence.request.logits_from);
    pipeline_.SendOpen(std::move(open));
    running_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
}

void Engine::Dispatch() {
  while (pipeline_.CanSendStep()) {
    schedulable_.clear();
    schedulable_sequences_.clear();
    for (const std::unique_ptr<Sequence>& sequence : running_) {
      if (sequence->closing) continue;
      const SequenceRequest& request = sequence->request;
      schedulable_.push_back(
          {.prompt_end = sequence->prompt_end(),
           .scheduled_count = sequence->scheduled_count,
           .token_count = sequence->token_count(),
           .last_step_id = sequence->last_step_id,
           .max_chunk_rows = request.logits_from < 0 ? options_.max_chunk_rows : max_logit_rows_,
           .blocked = request.sink != nullptr && request.sink->Blocked(),
           .may_run_ahead = pipeline_.stage_count() == 1 && sequence->may_run_ahead()});
      schedulable_sequences_.push_back(sequence.get());
    }
    const std::optional<ChosenStep> chosen = ChooseStep(schedulable_, in_flight_counts_, limits_);
    if (!chosen.has_value()) return;
    SendChosen(*chosen);
  }
}

void Engine::SendChosen(const ChosenStep& chosen) {
  const uint64_t step_id = ++last_step_id_;
  const bool is_prompt = chosen.kind == StepKind::kPrompt;
  SentStep sent{.kind = chosen.kind};
  v1::StepMessage step;
  step.set_step_id(step_id);
  step.set_kind(is_prompt ? v1::STEP_MESSAGE_KIND_PROMPT : v1::STEP_MESSAGE_KIND_DECODE);
  for (const ChosenRows& rows : chosen.rows) {
    Sequence& sequence = *schedulable_sequences_[rows.index];
    v1::StepEntryMessage& entry = *step.add_entries();
    entry.set_sequence_id(sequence.id);
    entry.set_generation(sequence.slot.generation);
    entry.set_kv_slot(sequence.slot.kv_slot);
    entry.set_position(sequence.scheduled_count);
    if (sequence.scheduled_count < sequence.token_count()) {
      const auto first = sequence.tokens.begin() + sequence.scheduled_count;
      entry.mutable_token_ids()->Add(first, first + rows.row_count);
    } else {
      entry.add_token_ids(kTokenDrawnBefore);
    }
    sequence.scheduled_count += rows.row_count;
    const int64_t pages_needed = PagesFor(sequence.scheduled_count);
    for (; sequence.pages_sent < pages_needed; ++sequence.pages_sent) {
      entry.add_new_pages(sequence.pages[sequence.pages_sent]);
    }
    entry.set_sample(sequence.awaits_token());
    sequence.last_step_id = step_id;
    sent.entries.push_back({sequence.id, sequence.slot.generation, rows.row_count});
  }
  in_flight_.emplace(step_id, std::move(sent));
  ++in_flight_counts_.steps;
  if (!is_prompt) ++in_flight_counts_.decode_steps;
  in_flight_counts_.last_kind = chosen.kind;
  metrics_.CountStep(is_prompt);
  pipeline_.SendStep(std::move(step));
}

void Engine::FlushSinks() {
  for (const std::shared_ptr<SequenceSink>& sink : to_flush_) sink->Flush();
  to_flush_.clear();
}

void Engine::Publish() {
  const bool ready = ready_ && !draining_;
  metrics_.SetGauges({.queued = static_cast<int>(queue_.size()),
                      .running = running_count(),
                      .slots_used = cache_.slots_used(),
                      .slots = cache_.slot_count(),
                      .pages_used = cache_.pages_used(),
                      .pages = cache_.page_count(),
                      .epoch = pipeline_.epoch(),
                      .ready = ready});
  if (draining_ && drained_ != nullptr && queue_.empty() && running_count() == 0) {
    std::exchange(drained_, nullptr)();
  }
  if (ready && published_ready_) return;
  const SteadyTime now = Now();
  std::string reason = ready ? "" : std::string(Refusal().message());
  if (ready == published_ready_ && reason == published_reason_ && now < publish_again_at_) return;
  published_ready_ = ready;
  published_reason_ = std::move(reason);
  publish_again_at_ = now + kReadinessInterval;
  options_.on_readiness(ready, published_reason_);
}

}  // namespace warpline
