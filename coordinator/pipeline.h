// The stages as the coordinator sees them: who is there, in which epoch, and the edge into stage 0.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "coordinator/capacity_plan.h"
#include "coordinator/engine_event.h"
#include "coordinator/metrics.h"
#include "coordinator/split_plan.h"
#include "coordinator/stage_client.h"
#include "proto/inference.pb.h"
#include "proto/peer_secret.h"

namespace warpline {

struct PipelineOptions {
  std::vector<std::string> addresses;  // [stage_count]
  SplitPlan split;                     // as many stages
  CapacityPlan capacity;
  std::string fingerprint;
  int layer_count = 0;
  int width = 0;          // residual_width
  int max_step_rows = 0;  // of a prompt chunk or a decode micro-batch
  v1::EdgeKind edge = v1::EDGE_KIND_AUTO;
  v1::KvCacheType kv_type = v1::KV_CACHE_TYPE_F16;
  PeerSecret secret;
  std::chrono::milliseconds hello_limit{10'000};  // for a worker to answer an Assign
  std::chrono::milliseconds load_limit{600'000};  // of a stage that comes no nearer to serving
};

// Owned and used by the engine thread. A stage that is lost, or says that it failed, ends the
// epoch: all sequences are forgotten, every stage that is there is assigned its share again
// (keeping its weights), and once all serve the edge is opened anew.
class Pipeline {
 public:
  Pipeline(PipelineOptions options, std::shared_ptr<EngineInbox> inbox, Metrics& metrics);

  // What an event did to the pipeline as a whole.
  enum class Change {
    kNone,
    kOpened,  // every stage serves and the edge is open: steps may be sent
    kLost,    // the epoch ended; loss() says why
  };
  // Takes what concerns the stages themselves. Replies about sequences are the engine's: see
  // IsCurrentReply.
  Change OnReply(const LinkId& link, const v1::ControlReply& reply);
  Change OnEdgeAck(const LinkId& link, const v1::EdgeAck& ack);
  Change OnEnded(const LinkId& link, const absl::Status& status);
  // `stage` says that it has lost the next one, whose own stream may end later.
  Change OnEdgeFailure(int stage);
  // Dials what is to be dialled and gives up on what was silent too long.
  Change OnTime(SteadyTime now);
  // When OnTime has to be called next; none: not before another event.
  std::optional<SteadyTime> NextDeadline() const;

  // Whether a reply about a sequence belongs to a live stream and to this epoch.
  bool IsCurrentReply(const LinkId& link, uint64_t epoch) const;
  // Ends the epoch although every stage is there, and begins the next after a pause.
  void Restart(const absl::Status& why, std::chrono::milliseconds pause);
  const absl::Status& loss() const { return loss_; }

  bool is_open() const { return edge_state_ == EdgeState::kOpen; }
  // The edge into stage 0 has a credit for a step.
  bool CanSendStep() const { return is_open() && unacknowledged_ < edge_slots(); }
  void SendOpen(v1::OpenMessage open);
  void SendStep(v1::StepMessage step);  // Sets the epoch; needs CanSendStep.
  void SendClose(v1::CloseMessage close);
  // Tells all workers to stop; from now on none is dialled.
  void ShutDownWorkers();
  bool HasWorkers() const;  // whose control stream is open
  void CancelLinks();
  // Streams that have not ended yet, those of earlier epochs included.
  int link_count() const { return link_count_; }

  uint64_t epoch() const { return epoch_; }
  int stage_count() const { return static_cast<int>(stages_.size()); }
  // "stage 0: loading 40 %; stage 1: down (...)", or "" when all serve.
  std::string MissingStages() const;
  void FillStatus(v1::StatusResponse& status) const;

 private:
  enum class StageState { kDown, kConnecting, kLoading, kServing };
  enum class EdgeState { kClosed, kOpening, kOpen };

  struct Stage {
    std::string address;
    std::unique_ptr<StageClient> client;
    StageState state = StageState::kDown;
    uint64_t control_number = 0;  // of the stream that is open or ending
    bool has_control = false;
    bool said_hello = false;      // in this epoch
    uint64_t assigned_epoch = 0;  // of the latest Assign
    SteadyTime assigned_at;
    std::optional<SteadyTime> dial_at;  // no stream: when to open the next
    int attempts = 0;                   // that ended before a hello, in a row
    SteadyTime progress_at;             // while loading: its hello, or what it loaded last
    std::string reason;                 // why it is not serving
    std::optional<int64_t> pid;
    int64_t last_pid = 0;
    uint64_t restarts = 0;
    float loaded = 0;
    std::string device;
    SteadyTime heard_at;
    v1::Serving serving;
    StageCounterTotals counters;
  };

  int edge_slots() const;
  v1::ControlRequest AssignmentOf(int stage) const;
  absl::Status CheckHello(int stage, const v1::Hello& hello) const;
  void Dial(int stage);
  void OnHello(int stage, const v1::Hello& hello);
  bool AllServe() const;
  // Whether the stage has its weights and waits for the edge to the next one.
  bool AwaitsNext(int stage) const;
  // When a stage that is loading is given up; none: not loading, or another one's fault.
  std::optional<SteadyTime> LoadDeadline(int stage) const;
  void OpenEdge();
  // Others have noticed that the stage is gone; its control stream may end later, or not at all.
  Change LoseStage(int stage, std::string reason);
  Change Lose(absl::Status why);
  void AssignAll();
  std::string StageText(int stage) const;

  const PipelineOptions options_;
  Metrics& metrics_;
  std::vector<Stage> stages_;
  uint64_t epoch_ = 1;
  absl::Status loss_;
  EdgeState edge_state_ = EdgeState::kClosed;
  uint64_t edge_number_ = 0;
  SteadyTime edge_opened_at_;
  int unacknowledged_ = 0;  // steps sent whose credit has not come back
  uint32_t next_edge_slot_ = 0;
  bool stopping_ = false;
  int link_count_ = 0;
  std::optional<SteadyTime> assign_at_;  // after a Restart: when the next epoch begins
};

}  // namespace warpline
