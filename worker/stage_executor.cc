#include "worker/stage_executor.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_detail.h"
#include "base/log.h"
#include "base/process.h"
#include "base/status.h"
#include "proto/stage_protocol.h"
#include "kernels/non_finite.h"
#include "worker/step_proto.h"

namespace warpline {
namespace {

// A sum with a term for each holder of a place: an open and a close of each sequence,
// unacknowledged steps, and two for a new epoch and the loss of an edge.
constexpr size_t kInboxCapacity = kMaxSlots + kMaxSlots + kMaxEdgeSlots + 2;
constexpr std::chrono::milliseconds kCountersBusy{500};
constexpr std::chrono::milliseconds kCountersIdle{5000};
constexpr std::chrono::hours kNever{1};
// Two steps: one may be the last of its sequence, and then the other is still read ahead.
constexpr size_t kMostAhead = 2;
// So many failed reads of the n-gram table, one after another, are no bad moment of a disk: the
// service is not ready any more.
constexpr uint64_t kMostTableErrors = 8;

bool SameShare(const StageAssignment& a, const StageAssignment& b) {
  return a.layers == b.layers && a.stage == b.stage && a.stage_count == b.stage_count &&
         a.kv_type == b.kv_type && a.slot_count == b.slot_count && a.page_count == b.page_count &&
         a.max_context == b.max_context && a.configured_context == b.configured_context &&
         a.max_chunk_rows == b.max_chunk_rows;
}

bool SameCounts(const v1::StageCounters& a, const v1::StageCounters& b) {
  return a.epoch() == b.epoch() && a.steps() == b.steps() && a.rows() == b.rows() &&
         a.dropped_entries() == b.dropped_entries() &&
         a.non_finite_entries() == b.non_finite_entries() &&
         a.open_sequences() == b.open_sequences() && a.refused_messages() == b.refused_messages() &&
         a.ple().mode_changes() == b.ple().mode_changes();
}

void SetPleCounters(const NgramCounters& from, v1::PleCounters& to) {
  to.set_rows_requested(from.rows_requested);
  to.set_cache_hits(from.cache_hits);
  to.set_rows_read(from.rows_read);
  to.set_mode_changes(from.mode_changes);
  to.set_errors(from.errors);
  to.set_slow_batches(from.slow_batches);
  to.set_mode(kPleIoNames[static_cast<int>(from.mode)]);
}

}  // namespace

StageExecutor::StageExecutor(Options options)
    : options_(std::move(options)),
      inbox_(std::make_shared<BoundedQueue<Task>>(kInboxCapacity)),
      thread_([this] { Loop(); }) {}

StageExecutor::~StageExecutor() {
  inbox_->Close();
  closing_ = true;
  thread_.join();
}

absl::Status StageExecutor::Begin(const StageAssignment& assignment,
                                  std::shared_ptr<ControlSink> control,
                                  std::shared_ptr<Outlet> outlet) {
  std::shared_ptr<Outlet> old;
  {
    MutexLock lock(mutex_);
    old = std::exchange(newest_outlet_, outlet);
  }
  newest_epoch_ = assignment.epoch;
  if (old != nullptr) old->Break(absl::CancelledError("a new epoch begins"));
  BeginTask task{
      .assignment = assignment, .control = std::move(control), .outlet = std::move(outlet)};
  return inbox_->TryPush(std::move(task)) ? absl::OkStatus() : WhyRefused();
}

absl::Status StageExecutor::Submit(EdgeTask task) {
  return inbox_->TryPush(std::move(task)) ? absl::OkStatus() : WhyRefused();
}

absl::Status StageExecutor::WhyRefused() const {
  if (stopping_) return absl::CancelledError("the worker stops");
  return absl::ResourceExhaustedError("the stage's inbox is full");
}

std::function<void(const absl::Status&)> StageExecutor::EdgeLostHandler(uint64_t epoch) {
  return [inbox = inbox_, epoch](const absl::Status& status) {
    // A status of its own: the packaged abseil counts shared ones where no sanitizer can see it.
    // A closed inbox does not want to know.
    (void)inbox->TryPush(
        EdgeLostTask{.epoch = epoch, .status = absl::Status(status.code(), status.message())});
  };
}

void StageExecutor::Stop() {
  stopping_ = true;
  std::shared_ptr<Outlet> outlet;
  {
    MutexLock lock(mutex_);
    outlet = newest_outlet_;
  }
  if (outlet != nullptr) outlet->Break(absl::CancelledError("the worker stops"));
  inbox_->Close();
}

void StageExecutor::Loop() {
  const auto run = [this](Task& task) {
    if (stopping_ || poisoned_) return;
    if (auto* const begin = std::get_if<BeginTask>(&task)) RunBegin(std::move(*begin));
    if (auto* const edge = std::get_if<EdgeTask>(&task)) RunEdge(std::move(*edge));
    if (const auto* const lost = std::get_if<EdgeLostTask>(&task)) RunEdgeLost(*lost);
  };
  while (!closing_) {
    if (std::optional<Task> task = NextTask(); task.has_value()) {
      LookAhead();
      run(*task);
    }
    if (stopping_) return;
    ReportCounters();
    if (edge_lost_at_.has_value() && Now() - *edge_lost_at_ >= options_.edge_loss_limit) {
      edge_lost_at_.reset();
      control_->End(absl::UnavailableError(
          absl::StrCat("stage ", assignment_.stage, " lost its edge and got no new epoch")));
      options_.stop(1);
    }
  }
  for (Task& task : ahead_) run(task);
  while (std::optional<Task> task = inbox_->Pop()) run(*task);
}

std::optional<StageExecutor::Task> StageExecutor::NextTask() {
  if (ahead_.empty()) return inbox_->PopUntil(NextWake());
  std::optional<Task> task(std::move(ahead_.front()));
  ahead_.pop_front();
  return task;
}

// Tells the model of the steps that are waiting, so that their rows of the n-gram table are read
// while an earlier step computes.
void StageExecutor::LookAhead() {
  if (!serving_ || options_.ngram_reader() == nullptr) return;
  while (ahead_.size() < kMostAhead) {
    std::optional<Task> task = inbox_->PopUntil(Now());
    if (!task.has_value()) return;
    ahead_.push_back(*std::move(task));
    const auto* const edge = std::get_if<EdgeTask>(&ahead_.back());
    if (edge == nullptr || edge->epoch != assignment_.epoch) continue;
    if (const auto* const step = std::get_if<IncomingStep>(&edge->item); step != nullptr) {
      model_->Prefetch(step->step);
    }
  }
}

SteadyTime StageExecutor::NextWake() const {
  if (!serving_) return Now() + kNever;
  SteadyTime wake =
      reported_at_ + (SameCounts(counters_, reported_) ? kCountersIdle : kCountersBusy);
  if (edge_lost_at_.has_value()) wake = std::min(wake, *edge_lost_at_ + options_.edge_loss_limit);
  return wake;
}

void StageExecutor::ReportCounters() {
  if (!serving_) return;
  counters_.set_refused_messages(refused_messages_.load(std::memory_order_relaxed));
  counters_.set_open_sequences(sequences_.size());
  counters_.clear_ple();
  if (const NgramReader* const reader = options_.ngram_reader(); reader != nullptr) {
    SetPleCounters(reader->counters(), *counters_.mutable_ple());
  }
  const bool same = SameCounts(counters_, reported_);
  if (Now() - reported_at_ < (same ? kCountersIdle : kCountersBusy)) return;
  reported_ = counters_;
  reported_at_ = Now();
  v1::ControlReply reply;
  *reply.mutable_counters() = counters_;
  control_->Send(std::move(reply));
}

void StageExecutor::RunBegin(BeginTask task) {
  serving_ = false;
  edge_lost_at_.reset();
  sequences_.clear();
  assignment_ = std::move(task.assignment);
  control_ = std::move(task.control);
  outlet_ = std::move(task.outlet);
  if (const absl::Status status = BringUp(); !status.ok()) {
    // A still newer epoch has broken the outlet; its Begin is in the inbox.
    if (newest_epoch_ != assignment_.epoch || stopping_) return;
    Poison(Annotate(status, absl::StrCat("stage ", assignment_.stage)));
    return;
  }
  counters_.set_epoch(assignment_.epoch);
  serving_ = true;
  reported_at_ = Now();
  const std::string edge = outlet_ == nullptr ? "" : outlet_->kind();
  LogInfo("serving stage=", assignment_.stage, " layers=", assignment_.layers.begin, "..",
          assignment_.layers.end, " epoch=", assignment_.epoch,
          " weight_mib=", model_->weight_bytes() >> 20, " cache_mib=", model_->cache_bytes() >> 20,
          " edge=", edge.empty() ? "none" : edge, model_->DeviceMemoryLine());
  NotifySupervisor("STATUS=serving");
  v1::ControlReply reply;
  v1::Serving& serving = *reply.mutable_serving();
  serving.set_epoch(assignment_.epoch);
  serving.set_weight_bytes(static_cast<uint64_t>(model_->weight_bytes()));
  serving.set_cache_bytes(static_cast<uint64_t>(model_->cache_bytes()));
  serving.set_edge(edge);
  control_->Send(std::move(reply));
}

absl::Status StageExecutor::BringUp() {
  if (model_ != nullptr && SameShare(loaded_, assignment_)) {
    WL_RETURN_IF_ERROR(model_->ResetAllSlots());
    TellLoaded(1);  // From here on the stage waits for its edge.
  } else {
    WL_RETURN_IF_ERROR(LoadModel());
  }
  output_.reset();
  if (assignment_.is_last()) {
    output_ = std::make_unique<StageOutput>(
        options_.n_vocab, [this](const Step& step, const StepEntry& entry,
                                 const absl::Status& status) { FailEntry(step, entry, status); });
    return absl::OkStatus();
  }
  return outlet_->Open();
}

absl::Status StageExecutor::LoadModel() {
  model_.reset();  // Before the new one, so that the two never need memory together.
  int shown_percent = -1;
  const auto progress = [this, &shown_percent](double fraction) {
    const int percent = static_cast<int>(fraction * 100);
    if (percent == shown_percent) return;
    shown_percent = percent;
    NotifySupervisor(absl::StrCat("STATUS=loading ", percent, " %"));
    TellLoaded(fraction);
  };
  progress(0);
  WL_ASSIGN_OR_RETURN(model_, options_.load(assignment_, progress));
  loaded_ = assignment_;
  return absl::OkStatus();
}

void StageExecutor::TellLoaded(double fraction) {
  v1::ControlReply reply;
  reply.mutable_loading()->set_epoch(assignment_.epoch);
  reply.mutable_loading()->set_fraction(static_cast<float>(fraction));
  control_->Send(std::move(reply));
}

void StageExecutor::RunEdgeLost(const EdgeLostTask& task) {
  if (task.epoch != assignment_.epoch || !serving_ || edge_lost_at_.has_value()) return;
  LogWarning("edge lost stage=", assignment_.stage, " epoch=", task.epoch, ": ",
             task.status.message());
  edge_lost_at_ = Now();
  // Steps under way may have gone with it, so no open sequence can be finished.
  for (auto& [key, sequence] : sequences_) {
    if (sequence.failed) continue;
    FailEntry(Step{.epoch = task.epoch}, StepEntry{.key = key}, task.status);
  }
}

void StageExecutor::RunEdge(EdgeTask task) {
  if (task.epoch != assignment_.epoch || !serving_) return;  // Of an edge that was closed since.
  if (const auto* const open = std::get_if<OpenSequence>(&task.item)) RunOpen(*open);
  if (const auto* const close = std::get_if<CloseSequence>(&task.item)) RunClose(*close);
  if (auto* const incoming = std::get_if<IncomingStep>(&task.item)) {
    if (!incoming->payload.empty()) incoming->rows = RowsOf(incoming->payload);
    const auto acknowledge = [&task, incoming] {
      task.inlet->Acknowledge(incoming->step.step_id, incoming->edge_slot);
    };
    const StartedStep started = StartStep(*incoming);
    // Token ids have been taken by then, so this is sent while a device computes; rows may still be
    // on their way to it.
    const bool brings_rows = !incoming->rows.empty();
    if (!brings_rows) acknowledge();
    FinishStep(started);
    if (brings_rows) acknowledge();
  }
}

void StageExecutor::RunOpen(const OpenSequence& open) {
  StageSequence& sequence = sequences_[open.key];
  sequence.kv_slot = open.kv_slot;
  sequence.sampling = open.sampling;
  sequence.logits_from = open.logits_from;
  absl::Status status = model_->ResetSlot(open.kv_slot);
  if (absl::IsInternal(status)) return Poison(status);
  if (status.ok() && outlet_ != nullptr) status = outlet_->SendOpen(open);
  if (!status.ok()) {
    FailEntry(Step{.epoch = assignment_.epoch}, StepEntry{.key = open.key}, status);
  }
}

void StageExecutor::RunClose(const CloseSequence& close) {
  sequences_.erase(close.key);
  if (outlet_ != nullptr) {
    // A lost edge is known by then: only a new epoch brings the sequence to an end on the stages
    // behind it.
    (void)outlet_->SendClose(close);
    return;
  }
  v1::ControlReply reply;
  v1::SequenceClosed& closed = *reply.mutable_closed();
  closed.set_epoch(assignment_.epoch);
  closed.set_sequence_id(close.key.sequence_id);
  closed.set_generation(close.key.generation);
  closed.set_kv_slot(static_cast<uint32_t>(close.kv_slot));
  control_->Send(std::move(reply));
}

StageExecutor::StartedStep StageExecutor::StartStep(const IncomingStep& incoming) {
  counters_.set_steps(counters_.steps() + 1);
  const size_t entry_count = incoming.step.entries.size();
  StartedStep started{.step = KeepRunnable(incoming.step, incoming.rows)};
  if (started.step.entries.empty()) return started;
  const absl::Span<const float> in =
      started.step.entries.size() == entry_count ? incoming.rows : absl::MakeConstSpan(kept_rows_);
  started.status = RunLayers(started.step, in);
  return started;
}

void StageExecutor::FinishStep(const StartedStep& started) {
  const Step& kept = started.step;
  if (kept.entries.empty()) return AnswerEmpty(kept);
  const absl::Status status = started.status.ok() ? HandOn(kept) : started.status;
  if (status.ok()) return;
  // Nothing that a faulty device computed later would be right. The end of the control stream tells
  // the requests, which may be sent again: the fault is not theirs.
  if (absl::IsInternal(status)) return Poison(status);
  FailStep(kept, status);
  const NgramReader* const reader = options_.ngram_reader();
  if (reader != nullptr && reader->counters().consecutive_errors >= kMostTableErrors) {
    return Poison(Annotate(status, "the n-gram table cannot be read any more"));
  }
  AnswerEmpty(kept);
}

// The entries that can still be run; kept_rows_ holds their rows where some were left out.
Step StageExecutor::KeepRunnable(const Step& step, absl::Span<const float> in) {
  Step kept{.epoch = step.epoch, .step_id = step.step_id, .kind = step.kind};
  kept.entries.reserve(step.entries.size());
  const size_t width = static_cast<size_t>(options_.residual_width);
  kept_rows_.clear();
  size_t first_row = 0;
  for (const StepEntry& entry : step.entries) {
    const absl::Span<const float> rows =
        in.empty() ? in : in.subspan(first_row * width, entry.token_ids.size() * width);
    first_row += entry.token_ids.size();
    const auto found = sequences_.find(entry.key);
    if (found == sequences_.end() || found->second.failed) {
      counters_.set_dropped_entries(counters_.dropped_entries() + 1);
      continue;
    }
    if (HasNonFinite(rows)) {
      FailEntry(step, entry,
                WithDetail(
                    absl::InternalError(absl::StrCat("the stage before stage ", assignment_.stage,
                                                     " handed on activations that are not finite")),
                    {.code = "numerical_error"}));
      continue;
    }
    kept.entries.push_back(entry);
    int32_t& first_id = kept.entries.back().token_ids.front();
    if (first_id == kTokenDrawnBefore) first_id = found->second.drawn;
  }
  if (in.empty() || kept.entries.size() == step.entries.size()) return kept;
  first_row = 0;
  for (const StepEntry& entry : step.entries) {
    const absl::Span<const float> rows =
        in.subspan(first_row * width, entry.token_ids.size() * width);
    first_row += entry.token_ids.size();
    const auto found = sequences_.find(entry.key);
    if (found == sequences_.end() || found->second.failed) continue;
    kept_rows_.insert(kept_rows_.end(), rows.begin(), rows.end());
  }
  return kept;
}

absl::Status StageExecutor::RunLayers(const Step& step, absl::Span<const float> in) {
  const int row_count = step.RowCount();
  absl::Span<float> out;
  SteadyTime begin = Now();
  if (outlet_ != nullptr) {
    WL_ASSIGN_OR_RETURN(out, outlet_->Reserve(int64_t{row_count} * options_.residual_width));
    counters_.set_wait_seconds(counters_.wait_seconds() + SecondsSince(begin));
    begin = Now();
  }
  WL_RETURN_IF_ERROR(model_->Forward(step, in, out));
  counters_.set_rows(counters_.rows() + static_cast<uint64_t>(row_count));
  counters_.set_busy_seconds(counters_.busy_seconds() + SecondsSince(begin));
  return absl::OkStatus();
}

absl::Status StageExecutor::HandOn(const Step& step) {
  if (outlet_ != nullptr) return outlet_->SendStep(step);
  const SteadyTime begin = Now();
  WL_RETURN_IF_ERROR(output_->Run(step, *model_, sequences_, *control_));
  counters_.set_busy_seconds(counters_.busy_seconds() + SecondsSince(begin));
  return absl::OkStatus();
}

void StageExecutor::FailEntry(const Step& step, const StepEntry& entry,
                              const absl::Status& status) {
  if (const auto found = sequences_.find(entry.key); found != sequences_.end()) {
    found->second.failed = true;
  }
  const std::string detail = DetailOf(status).code;
  if (detail == "numerical_error") {
    counters_.set_non_finite_entries(counters_.non_finite_entries() + 1);
  }
  v1::ControlReply reply;
  v1::StepFailure& failure = *reply.mutable_failure();
  failure.set_epoch(assignment_.epoch);
  failure.set_step_id(step.step_id);
  failure.set_sequence_id(entry.key.sequence_id);
  failure.set_generation(entry.key.generation);
  failure.set_code(static_cast<int32_t>(status.code()));
  failure.set_message(std::string(status.message()));
  failure.set_detail_code(detail);
  control_->Send(std::move(reply));
}

void StageExecutor::FailStep(const Step& step, const absl::Status& status) {
  for (const StepEntry& entry : step.entries) {
    if (!sequences_.at(entry.key).failed) FailEntry(step, entry, status);
  }
}

// The step ends on this stage, so this stage answers it.
void StageExecutor::AnswerEmpty(const Step& step) {
  v1::ControlReply reply;
  reply.mutable_result()->set_epoch(step.epoch);
  reply.mutable_result()->set_step_id(step.step_id);
  control_->Send(std::move(reply));
}

void StageExecutor::Poison(const absl::Status& status) {
  poisoned_ = true;
  serving_ = false;
  LogError("stage=", assignment_.stage, " gives up: ", status.message());
  control_->End(status);
  options_.stop(1);
}

}  // namespace warpline
