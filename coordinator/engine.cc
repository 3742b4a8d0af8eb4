#include "coordinator/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_detail.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/stage_protocol.h"

namespace warpline {
namespace {

// Requests and cancels of all callers, and what the steps in flight can bring: a bound that a sound
// deployment never reaches.
constexpr size_t kInboxCapacity = 1 << 16;
constexpr size_t kInboxRoomForStages = kInboxCapacity / 2;
// Rows of logits that one prompt chunk of an evaluation may give.
constexpr int64_t kMaxLogitBytes = 64 << 20;
constexpr int kEventsPerRound = 64;
constexpr auto kShutdownLimit = std::chrono::seconds(1);

int64_t MaxLogitRows(int vocab_size) {
  return std::max<int64_t>(1, kMaxLogitBytes / (int64_t{vocab_size} * 4));
}

// 100, 200, 400 .. 3200 ms after warm-up tokens that failed in a row.
std::chrono::milliseconds WarmUpPause(int failures) {
  return std::chrono::milliseconds(50 << std::min(failures, 6));
}

}  // namespace

Engine::Engine(EngineOptions options, Metrics& metrics)
    : options_(std::move(options)),
      metrics_(metrics),
      inbox_(std::make_shared<EngineInbox>(kInboxCapacity)),
      pipeline_(options_.pipeline, inbox_, metrics),
      cache_(options_.pipeline.capacity.slot_count, options_.pipeline.capacity.page_count),
      limits_{.stage_count = pipeline_.stage_count(),
              .max_chunk_rows = options_.max_chunk_rows,
              .max_decode_rows = options_.pipeline.max_step_rows},
      max_logit_rows_(
          std::min<int64_t>(options_.max_chunk_rows, MaxLogitRows(options_.vocab_size))) {}

void Engine::Start() {
  thread_ = std::thread([this] { Loop(); });
}

Engine::~Engine() {
  inbox_->Push(StopEvent{});
  if (thread_.joinable()) thread_.join();
  inbox_->Close();
  // Ended streams go on this thread; those that end later see the closed inbox.
  while (inbox_->Pop().has_value()) continue;
}

bool Engine::HasRoomForCallers() const {
  return inbox_->size() < kInboxCapacity - kInboxRoomForStages;
}

absl::StatusOr<uint64_t> Engine::Submit(SequenceRequest request) {
  const uint64_t id = next_sequence_id_.fetch_add(1, std::memory_order_relaxed);
  if (!HasRoomForCallers() ||
      !inbox_->TryPush(SubmitEvent{.sequence_id = id, .request = std::move(request)})) {
    return absl::ResourceExhaustedError("too many requests at once");
  }
  return id;
}

void Engine::Cancel(uint64_t sequence_id, absl::Status why) {
  (void)inbox_->TryPush(CancelEvent{.sequence_id = sequence_id, .why = std::move(why)});
}
void Engine::Resume() { (void)inbox_->TryPush(ResumeEvent{}); }
bool Engine::GetStatus(std::function<void(v1::StatusResponse)> answer) {
  return HasRoomForCallers() && inbox_->TryPush(StatusEvent{.answer = std::move(answer)});
}
void Engine::Drain(std::function<void()> drained) {
  (void)inbox_->Push(DrainEvent{.drained = std::move(drained)});
}
void Engine::FailAll(absl::Status status) {
  (void)inbox_->Push(FailAllEvent{.status = std::move(status)});
}

void Engine::Loop() {
  while (!stopped_) {
    std::optional<EngineEvent> event = NextEvent();
    // What has come in the meantime is taken together, so that its rows can share a step.
    for (int count = 0; event.has_value(); ++count) {
      std::visit([this](auto& one) { Handle(one); }, *event);
      if (count >= kEventsPerRound || inbox_->size() == 0) break;
      event = inbox_->Pop();
    }
    Apply(pipeline_.OnTime(Now()));
    if (restart_.has_value()) {
      pipeline_.Restart(*restart_, WarmUpPause(failed_warm_ups_));
      restart_.reset();
      Apply(Pipeline::Change::kLost);
    }
    Admit();
    Dispatch();
    FlushSinks();
    Publish();
  }
  AwaitWorkersEnd();
}

std::optional<EngineEvent> Engine::NextEvent() {
  std::optional<SteadyTime> deadline = pipeline_.NextDeadline();
  if (!published_ready_ && (!deadline.has_value() || publish_again_at_ < *deadline)) {
    deadline = publish_again_at_;
  }
  return deadline.has_value() ? inbox_->PopUntil(*deadline) : inbox_->Pop();
}

// The workers' streams end once they have read their Shutdown; what is left then is cancelled.
void Engine::AwaitWorkersEnd() {
  pipeline_.ShutDownWorkers();
  AwaitLinks([this] { return !pipeline_.HasWorkers(); });
  pipeline_.CancelLinks();
  AwaitLinks([this] { return pipeline_.link_count() == 0; });
}

void Engine::AwaitLinks(const std::function<bool()>& done) {
  const SteadyTime deadline = Now() + kShutdownLimit;
  while (!done()) {
    std::optional<EngineEvent> event = inbox_->PopUntil(deadline);
    if (!event.has_value()) return;
    if (auto* const ended = std::get_if<LinkEndedEvent>(&*event)) {
      pipeline_.OnEnded(ended->link, ended->status);
    }
  }
}

absl::Status Engine::Refusal() const {
  if (draining_) return absl::UnavailableError("the service is shutting down");
  if (!ready_) {
    std::vector<std::string> reasons = {warm_up_failure_, pipeline_.MissingStages()};
    reasons.erase(std::remove(reasons.begin(), reasons.end(), ""), reasons.end());
    return absl::UnavailableError(
        absl::StrCat("not ready: ", reasons.empty() ? "warming up" : absl::StrJoin(reasons, "; ")));
  }
  if (static_cast<int>(queue_.size()) >= options_.queue_capacity) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", queue_.size(), " requests wait"));
  }
  return absl::OkStatus();
}

void Engine::Handle(SubmitEvent& event) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = event.sequence_id;
  sequence->tokens = std::move(event.request.tokens);
  sequence->prompt_count = sequence->token_count();
  sequence->request = std::move(event.request);
  sequence->progress_at = Now();
  if (const absl::Status refusal = Refusal(); !refusal.ok()) {
    Finish(*sequence, refusal, FinishKind::kStop);
    return;
  }
  sequence->request.sink->OnAccepted();
  to_flush_.push_back(sequence->request.sink);
  queue_.push_back(std::move(sequence));
}

void Engine::Handle(CancelEvent& event) {
  for (auto place = queue_.begin(); place != queue_.end(); ++place) {
    if ((*place)->id != event.sequence_id) continue;
    Finish(**place, event.why, FinishKind::kStop);
    queue_.erase(place);
    return;
  }
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->id == event.sequence_id && !sequence->closing) {
      Finish(*sequence, event.why, FinishKind::kStop);
      return;
    }
  }
}

void Engine::Handle(ControlReplyEvent& event) {
  v1::ControlReply& reply = event.reply;
  const auto current = [this, &event](uint64_t epoch) {
    const bool is_current = pipeline_.IsCurrentReply(event.link, epoch);
    if (!is_current) metrics_.CountStaleResult();
    return is_current;
  };
  switch (reply.reply_case()) {
    case v1::ControlReply::kResult:
      if (current(reply.result().epoch())) OnResult(reply.result());
      break;
    case v1::ControlReply::kFailure:
      if (current(reply.failure().epoch())) OnFailure(event.link.stage, reply.failure());
      break;
    case v1::ControlReply::kClosed:
      if (current(reply.closed().epoch())) OnClosed(reply.closed());
      break;
    case v1::ControlReply::kLogits:
      if (current(reply.logits().epoch())) OnLogits(*reply.mutable_logits());
      break;
    default:
      Apply(pipeline_.OnReply(event.link, reply));
      break;
  }
}

void Engine::Handle(EdgeAckEvent& event) { Apply(pipeline_.OnEdgeAck(event.link, event.ack)); }
void Engine::Handle(LinkEndedEvent& event) { Apply(pipeline_.OnEnded(event.link, event.status)); }

void Engine::Handle(StatusEvent& event) {
  v1::StatusResponse status;
  const bool serving = ready_ && !draining_;
  status.set_ready(serving);
  if (!serving) status.set_reason(std::string(Refusal().message()));
  status.set_running(running_count());
  status.set_queued(static_cast<uint32_t>(queue_.size()));
  status.set_slots(cache_.slot_count());
  status.set_pages_used(cache_.pages_used());
  status.set_pages_total(cache_.page_count());
  status.set_context_length(options_.pipeline.capacity.context);
  status.set_draining(draining_);
  pipeline_.FillStatus(status);
  event.answer(std::move(status));
}

void Engine::Handle(DrainEvent& event) {
  draining_ = true;
  drained_ = std::move(event.drained);
}

void Engine::Handle(FailAllEvent& event) {
  for (const std::unique_ptr<Sequence>& sequence : queue_) {
    if (!sequence->is_warm_up) Finish(*sequence, event.status, FinishKind::kStop);
  }
  queue_.clear();
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (!sequence->closing && !sequence->is_warm_up) {
      Finish(*sequence, event.status, FinishKind::kStop);
    }
  }
}

void Engine::Handle(StopEvent&) {
  draining_ = true;
  DropAll(absl::UnavailableError("the service is shutting down"));
  stopped_ = true;
}

void Engine::Apply(Pipeline::Change change) {
  if (change == Pipeline::Change::kOpened) StartWarmUp();
  if (change == Pipeline::Change::kLost) DropAll(pipeline_.loss());
}

void Engine::DropAll(const absl::Status& status) {
  ready_ = false;
  in_flight_.clear();
  in_flight_counts_ = InFlight{};
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (!sequence->closing && !sequence->is_warm_up) {
      // Marked first: the stages have forgotten it, so no Close is sent.
      sequence->closing = true;
      Finish(*sequence, status, FinishKind::kStop);
    }
    cache_.Return(sequence->slot.kv_slot, sequence->pages);
  }
  running_.clear();
  for (const std::unique_ptr<Sequence>& sequence : queue_) {
    if (!sequence->is_warm_up) Finish(*sequence, status, FinishKind::kStop);
  }
  queue_.clear();
}

void Engine::StartWarmUp() {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_sequence_id_.fetch_add(1, std::memory_order_relaxed);
  sequence->is_warm_up = true;
  sequence->tokens = {options_.warm_up_token};
  sequence->prompt_count = 1;
  sequence->request.max_tokens = 1;
  sequence->request.sampling.set_top_p(1);
  sequence->request.sampling.set_repetition_penalty(1);
  queue_.push_back(std::move(sequence));
}

void Engine::FinishWarmUp(const absl::Status& status) {
  if (status.ok()) {
    ready_ = true;
    failed_warm_ups_ = 0;
    warm_up_failure_.clear();
    LogInfo("ready epoch=", pipeline_.epoch(), " stages=", pipeline_.stage_count());
    return;
  }
  const absl::Status why = Annotate(status, "the warm-up token failed");
  // A damaged model fails every time: said once in a while, and tried less and less often.
  if (warm_up_failure_ != why.message()) LogError(why.message());
  warm_up_failure_ = std::string(why.message());
  ++failed_warm_ups_;
  restart_ = why;
}

Sequence* Engine::FindLive(uint64_t sequence_id, uint32_t generation) {
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->id == sequence_id && sequence->slot.generation == generation) {
      return sequence->closing ? nullptr : sequence.get();
    }
  }
  return nullptr;
}

int Engine::running_count() const {
  return static_cast<int>(std::count_if(running_.begin(), running_.end(),
                                        [](const std::unique_ptr<Sequence>& sequence) {
                                          return !sequence->closing && !sequence->is_warm_up;
                                        }));
}

}  // namespace warpline
