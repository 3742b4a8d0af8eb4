// The engine: one thread that owns sequences, slots, pages and the pipeline, and sends the steps
// that the scheduler chooses.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "coordinator/cache_allocator.h"
#include "coordinator/engine_event.h"
#include "coordinator/metrics.h"
#include "coordinator/pipeline.h"
#include "coordinator/scheduler.h"
#include "coordinator/sequence.h"

namespace warpline {

struct EngineOptions {
  PipelineOptions pipeline;
  int max_chunk_rows = 512;  // of a prompt chunk
  int queue_capacity = 256;  // requests that may wait for a slot
  int vocab_size = 0;
  int32_t warm_up_token = 0;  // goes through every stage before the first request is taken
  // Called on the engine thread when readiness changes, and while not ready whenever the reason
  // does and every two seconds. `reason` names the stages that are missing.
  std::function<void(bool ready, const std::string& reason)> on_readiness;
};

// Thread-safe from outside. The destructor tells the workers to stop and joins the thread.
class Engine {
 public:
  Engine(EngineOptions options, Metrics& metrics);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Starts the thread, which dials the workers. What was submitted before waits until then.
  void Start();
  // The sequence's id, for Cancel; all else comes through its sink, a refusal included (Unavailable
  // while not ready or draining, ResourceExhausted when the queue is full). An error when the inbox
  // itself is full: then the sink is not called.
  absl::StatusOr<uint64_t> Submit(SequenceRequest request);
  // Ends the sequence with `why`, if it has not ended.
  void Cancel(uint64_t sequence_id, absl::Status why);
  // To be called when a sink that was Blocked() has room again.
  void Resume();
  // `answer` is called on the engine thread, with model, version and pid left to the caller. False
  // when the inbox is full: then it is not called.
  [[nodiscard]] bool GetStatus(std::function<void(v1::StatusResponse)> answer);
  // Refuses new requests; `drained` is called on the engine thread once none is left. This and
  // FailAll wait for room in the inbox.
  void Drain(std::function<void()> drained);
  // Ends what is left.
  void FailAll(absl::Status status);

 private:
  struct StepEntry {
    uint64_t sequence_id = 0;
    uint32_t generation = 0;
    int64_t row_count = 0;
  };
  struct SentStep {
    StepKind kind = StepKind::kPrompt;
    std::vector<StepEntry> entries;
  };

  bool HasRoomForCallers() const;
  void Loop();
  std::optional<EngineEvent> NextEvent();
  void AwaitWorkersEnd();
  void AwaitLinks(const std::function<bool()>& done);
  // One for each kind of event.
  void Handle(SubmitEvent& event);
  void Handle(CancelEvent& event);
  void Handle(ResumeEvent&) {}
  void Handle(ControlReplyEvent& event);
  void Handle(EdgeAckEvent& event);
  void Handle(LinkEndedEvent& event);
  void Handle(StatusEvent& event);
  void Handle(DrainEvent& event);
  void Handle(FailAllEvent& event);
  void Handle(StopEvent& event);

  void Apply(Pipeline::Change change);
  void OnResult(const v1::StepResult& result);
  void OnFailure(int stage, const v1::StepFailure& failure);
  void OnClosed(const v1::SequenceClosed& closed);
  void OnLogits(v1::LogitRows& rows);
  void AcceptToken(Sequence& sequence, int32_t token_id);
  // Ends a sequence: tells its sink, and closes its slot when it has one.
  void Finish(Sequence& sequence, const absl::Status& status, FinishKind kind);
  void DropAll(const absl::Status& status);

  void StartWarmUp();
  void FinishWarmUp(const absl::Status& status);
  void Admit();
  void Dispatch();
  void SendChosen(const ChosenStep& chosen);
  void FlushSinks();
  void Publish();
  absl::Status Refusal() const;  // OK when a new request may wait

  // Null when there is none, or when it is closing already.
  Sequence* FindLive(uint64_t sequence_id, uint32_t generation);
  int running_count() const;

  const EngineOptions options_;
  Metrics& metrics_;
  const std::shared_ptr<EngineInbox> inbox_;
  std::atomic<uint64_t> next_sequence_id_{1};

  // All below belongs to the engine thread.
  Pipeline pipeline_;
  CacheAllocator cache_;
  const SchedulerLimits limits_;
  std::deque<std::unique_ptr<Sequence>> queue_;     // First come, first served.
  std::vector<std::unique_ptr<Sequence>> running_;  // With a slot, in the order of admission.
  absl::flat_hash_map<uint64_t, SentStep> in_flight_;
  InFlight in_flight_counts_;
  uint64_t last_step_id_ = 0;
  std::vector<std::shared_ptr<SequenceSink>> to_flush_;
  std::vector<SchedulableSequence> schedulable_;  // Scratch of Dispatch.
  std::vector<Sequence*> schedulable_sequences_;
  const int64_t max_logit_rows_;  // Of an evaluation's prompt chunk.
  bool ready_ = false;
  int failed_warm_ups_ = 0;      // in a row
  std::string warm_up_failure_;  // of the last one; "" when it passed
  bool stopped_ = false;
  std::optional<absl::Status> restart_;  // The epoch has to end after this round.
  bool published_ready_ = false;
  std::string published_reason_;
  SteadyTime publish_again_at_;  // While not ready.
  std::function<void()> drained_;
  bool draining_ = false;

  std::thread thread_;
};

}  // namespace warpline
