#include "coordinator/pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/stage_protocol.h"

namespace warpline {
namespace {

constexpr auto kEdgeLimit = std::chrono::seconds(10);

// 50, 100, 200, 250, 250 .. ms after attempts that gave no hello.
std::chrono::milliseconds BackOff(int attempts) {
  return std::chrono::milliseconds(std::min(250, 50 << std::min(attempts, 3)));
}

template <typename T>
absl::Status CheckSame(absl::string_view field, const T& worker, const T& coordinator) {
  if (worker == coordinator) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "hello: ", field, " is ", worker, " at the worker and ", coordinator, " at the coordinator"));
}

}  // namespace

Pipeline::Pipeline(PipelineOptions options, std::shared_ptr<EngineInbox> inbox, Metrics& metrics)
    : options_(std::move(options)), metrics_(metrics) {
  WL_CHECK(options_.addresses.size() == options_.split.stages.size());
  const SteadyTime now = Now();
  for (size_t index = 0; index < options_.addresses.size(); ++index) {
    Stage stage{.address = options_.addresses[index], .reason = "not reached yet"};
    stage.client = std::make_unique<StageClient>(static_cast<int>(index), stage.address, inbox);
    stage.dial_at = now;
    stage.heard_at = now;
    stages_.push_back(std::move(stage));
  }
}

int Pipeline::edge_slots() const { return static_cast<int>(kEdgeSlots); }

v1::ControlRequest Pipeline::AssignmentOf(int stage) const {
  v1::ControlRequest request;
  v1::Assign& assign = *request.mutable_assign();
  const LayerRange& layers = options_.split.stages[stage].layers;
  const bool is_last = stage + 1 == stage_count();
  assign.set_protocol_version(kStageProtocolVersion);
  assign.set_epoch(epoch_);
  assign.set_fingerprint(options_.fingerprint);
  assign.set_stage(stage);
  assign.set_stage_count(stage_count());
  assign.set_layer_begin(layers.begin);
  assign.set_layer_end(layers.end);
  assign.set_layer_count(options_.layer_count);
  assign.set_width(options_.width);
  assign.set_next_address(is_last ? "" : options_.addresses[stage + 1]);
  assign.set_next_edge(options_.edge);
  assign.set_kv_type(options_.kv_type);
  assign.set_slot_count(options_.capacity.slot_count);
  assign.set_page_count(options_.capacity.page_count);
  assign.set_max_context(options_.capacity.context);
  assign.set_configured_context(options_.capacity.configured_context);
  assign.set_max_chunk_rows(options_.max_step_rows);
  assign.set_secret_proof(options_.secret.Proof(kControlPurpose, epoch_));
  return request;
}

absl::Status Pipeline::CheckHello(int stage, const v1::Hello& hello) const {
  const LayerRange& layers = options_.split.stages[stage].layers;
  WL_RETURN_IF_ERROR(
      CheckSame("protocol_version", hello.protocol_version(), kStageProtocolVersion));
  WL_RETURN_IF_ERROR(CheckSame("fingerprint", hello.fingerprint(), options_.fingerprint));
  WL_RETURN_IF_ERROR(CheckSame<int>("layer_begin", hello.layer_begin(), layers.begin));
  WL_RETURN_IF_ERROR(CheckSame<int>("layer_end", hello.layer_end(), layers.end));
  WL_RETURN_IF_ERROR(CheckSame<int>("width", hello.width(), options_.width));
  const auto slot_bytes = static_cast<uint64_t>(options_.max_step_rows) * options_.width * 4;
  WL_RETURN_IF_ERROR(CheckSame<uint64_t>("slot_bytes", hello.slot_bytes(), slot_bytes));
  return CheckSame("version", hello.version(), std::string(WARPLINE_VERSION));
}

void Pipeline::Dial(int index) {
  Stage& stage = stages_[index];
  stage.dial_at.reset();
  stage.said_hello = false;
  stage.has_control = true;
  stage.assigned_epoch = epoch_;
  stage.assigned_at = Now();
  if (stage.last_pid == 0 && stage.attempts == 0) stage.state = StageState::kConnecting;
  ++link_count_;
  stage.control_number = stage.client->OpenControl(AssignmentOf(index)).number;
}

void Pipeline::OnHello(int index, const v1::Hello& hello) {
  Stage& stage = stages_[index];
  if (hello.epoch() != epoch_) return;  // Answers an Assign that another has followed.
  if (const absl::Status status = CheckHello(index, hello); !status.ok()) {
    stage.reason = std::string(status.message());
    LogError("stage=", index, " refused: ", stage.reason);
    stage.client->CancelControl();
    return;
  }
  if (stage.last_pid != 0 && stage.last_pid != hello.pid()) {
    ++stage.restarts;
    metrics_.CountStageRestart(index);
  }
  stage.pid = hello.pid();
  stage.last_pid = hello.pid();
  stage.device = hello.capability();
  stage.said_hello = true;
  stage.attempts = 0;
  stage.reason.clear();
  stage.loaded = 0;
  stage.progress_at = Now();
  stage.state = StageState::kLoading;
  LogInfo("stage=", index, " said hello pid=", hello.pid(), " epoch=", epoch_, " layers=[",
          hello.layer_begin(), ",", hello.layer_end(), ") device=", stage.device);
}

Pipeline::Change Pipeline::OnReply(const LinkId& link, const v1::ControlReply& reply) {
  Stage& stage = stages_[link.stage];
  if (!stage.has_control || link.number != stage.control_number) return Change::kNone;
  stage.heard_at = Now();
  switch (reply.reply_case()) {
    case v1::ControlReply::kHello:
      OnHello(link.stage, reply.hello());
      break;
    case v1::ControlReply::kLoading:
      if (reply.loading().epoch() != epoch_) break;
      stage.loaded = reply.loading().fraction();
      stage.progress_at = Now();
      break;
    case v1::ControlReply::kServing:
      if (reply.serving().epoch() != epoch_ || !stage.said_hello) break;
      stage.serving = reply.serving();
      stage.loaded = 1;
      stage.state = StageState::kServing;
      LogInfo("stage=", link.stage, " serves epoch=", epoch_, " edge=", stage.serving.edge());
      if (AllServe()) OpenEdge();
      break;
    case v1::ControlReply::kCounters:
      metrics_.AddStageCounters(link.stage, reply.counters(), stage.counters);
      break;
    default:
      break;
  }
  return Change::kNone;
}

bool Pipeline::AllServe() const {
  return std::all_of(stages_.begin(), stages_.end(),
                     [](const Stage& stage) { return stage.state == StageState::kServing; });
}

bool Pipeline::AwaitsNext(int index) const {
  const Stage& stage = stages_[index];
  return stage.state == StageState::kLoading && stage.loaded >= 1 && index + 1 < stage_count();
}

std::optional<SteadyTime> Pipeline::LoadDeadline(int index) const {
  const Stage& stage = stages_[index];
  if (stage.state != StageState::kLoading || !stage.said_hello) return std::nullopt;
  SteadyTime since = stage.progress_at;
  if (AwaitsNext(index)) {
    const Stage& next = stages_[index + 1];
    if (!next.said_hello) return std::nullopt;  // It has no edge to open yet.
    since = std::max(since, next.progress_at);
  }
  return since + options_.load_limit;
}

void Pipeline::OpenEdge() {
  v1::EdgeMessage message;
  v1::EdgeHello& hello = *message.mutable_hello();
  hello.set_protocol_version(kStageProtocolVersion);
  hello.set_epoch(epoch_);
  hello.set_fingerprint(options_.fingerprint);
  hello.set_at_layer(0);
  hello.set_width(options_.width);
  hello.set_slot_bytes(static_cast<uint64_t>(options_.max_step_rows) * options_.width * 4);
  hello.set_slot_count(edge_slots());
  hello.set_kind(v1::EDGE_KIND_GRPC);
  hello.set_secret_proof(options_.secret.Proof(kEdgePurpose, epoch_));
  edge_state_ = EdgeState::kOpening;
  edge_opened_at_ = Now();
  unacknowledged_ = 0;
  next_edge_slot_ = 0;
  ++link_count_;
  edge_number_ = stages_[0].client->OpenEdge(std::move(message)).number;
}

Pipeline::Change Pipeline::OnEdgeAck(const LinkId& link, const v1::EdgeAck& ack) {
  if (edge_state_ == EdgeState::kClosed || link.number != edge_number_) return Change::kNone;
  if (edge_state_ == EdgeState::kOpen) {
    unacknowledged_ = std::max(0, unacknowledged_ - 1);
    return Change::kNone;
  }
  if (!ack.hello_ok()) return Lose(absl::UnavailableError("stage 0 refused the edge"));
  edge_state_ = EdgeState::kOpen;
  return Change::kOpened;
}

Pipeline::Change Pipeline::OnEnded(const LinkId& link, const absl::Status& status) {
  --link_count_;
  if (link.is_edge) {
    if (stopping_ || edge_state_ == EdgeState::kClosed || link.number != edge_number_) {
      return Change::kNone;
    }
    return LoseStage(0, absl::StrCat("its edge is lost: ", status.message()));
  }
  Stage& stage = stages_[link.stage];
  if (!stage.has_control || link.number != stage.control_number) return Change::kNone;
  if (stopping_) {
    stage.has_control = false;
    return Change::kNone;
  }
  const bool was_there = stage.said_hello;
  const std::string why =
      status.ok() ? "the worker ended its control stream" : std::string(status.message());
  // A refusal of ours has named the reason already; the stream then only says that we cancelled.
  if (!absl::IsCancelled(status) || stage.reason.empty()) stage.reason = why;
  if (was_there || stage.attempts == 0) {
    LogWarning("stage=", link.stage, " down address=", stage.address, ": ", stage.reason);
  }
  stage.has_control = false;
  stage.said_hello = false;
  stage.pid.reset();
  stage.loaded = 0;
  stage.state = StageState::kDown;
  stage.dial_at = Now() + (was_there ? std::chrono::milliseconds(0) : BackOff(stage.attempts));
  if (!was_there) ++stage.attempts;
  if (!was_there) return Change::kNone;
  return Lose(absl::UnavailableError(absl::StrCat("stage ", link.stage, " is down")));
}

Pipeline::Change Pipeline::OnEdgeFailure(int index) {
  return LoseStage(std::min(index + 1, stage_count() - 1),
                   absl::StrCat("stage ", index, " has lost it"));
}

Pipeline::Change Pipeline::LoseStage(int index, std::string reason) {
  Stage& stage = stages_[index];
  stage.state = StageState::kDown;
  stage.reason = std::move(reason);
  stage.said_hello = false;  // Until it answers the next Assign; if it is gone, that is no news.
  stage.pid.reset();
  return Lose(absl::UnavailableError(absl::StrCat("stage ", index, " is down")));
}

Pipeline::Change Pipeline::Lose(absl::Status why) {
  loss_ = std::move(why);
  ++epoch_;
  if (edge_state_ != EdgeState::kClosed) stages_[0].client->CancelEdge();
  edge_state_ = EdgeState::kClosed;
  for (Stage& stage : stages_) {
    if (stage.state != StageState::kServing) continue;
    stage.state = StageState::kLoading;
    stage.progress_at = Now();
  }
  LogWarning("epoch=", epoch_, " begins: ", loss_.message());
  if (!assign_at_.has_value()) AssignAll();
  return Change::kLost;
}

void Pipeline::AssignAll() {
  for (int index = 0; index < stage_count(); ++index) {
    Stage& stage = stages_[index];
    // Its stream may have been opened since the epoch began, with this Assign.
    if (!stage.has_control || stage.assigned_epoch == epoch_) continue;
    stage.said_hello = false;
    stage.assigned_epoch = epoch_;
    stage.assigned_at = Now();
    stage.client->SendControl(AssignmentOf(index));
  }
}

void Pipeline::Restart(const absl::Status& why, std::chrono::milliseconds pause) {
  assign_at_ = Now() + pause;
  Lose(why);
}

Pipeline::Change Pipeline::OnTime(SteadyTime now) {
  if (assign_at_.has_value() && now >= *assign_at_) {
    assign_at_.reset();
    AssignAll();
  }
  for (int index = 0; index < stage_count(); ++index) {
    Stage& stage = stages_[index];
    if (stage.dial_at.has_value() && now >= *stage.dial_at) Dial(index);
    if (stage.has_control && !stage.said_hello && !assign_at_.has_value() &&
        now >= stage.assigned_at + options_.hello_limit) {
      stage.reason = absl::StrCat("no hello within ", options_.hello_limit.count(), " ms");
      stage.assigned_at = now;
      stage.client->CancelControl();
    }
    if (const std::optional<SteadyTime> limit = LoadDeadline(index);
        limit.has_value() && now >= *limit) {
      stage.reason = absl::StrCat(
          AwaitsNext(index) ? "no edge to the next stage" : "no progress of loading", " within ",
          std::chrono::duration<double>(options_.load_limit).count(), " s");
      stage.progress_at = now;
      stage.client->CancelControl();
    }
  }
  if (edge_state_ == EdgeState::kOpening && now >= edge_opened_at_ + kEdgeLimit) {
    return Lose(absl::UnavailableError("stage 0 does not answer the edge's hello"));
  }
  return Change::kNone;
}

std::optional<SteadyTime> Pipeline::NextDeadline() const {
  std::optional<SteadyTime> next = assign_at_;
  const auto consider = [&next](SteadyTime time) {
    if (!next.has_value() || time < *next) next = time;
  };
  for (const Stage& stage : stages_) {
    if (stage.dial_at.has_value()) consider(*stage.dial_at);
    if (stage.has_control && !stage.said_hello && !assign_at_.has_value()) {
      consider(stage.assigned_at + options_.hello_limit);
    }
  }
  for (int index = 0; index < stage_count(); ++index) {
    if (const std::optional<SteadyTime> limit = LoadDeadline(index)) consider(*limit);
  }
  if (edge_state_ == EdgeState::kOpening) consider(edge_opened_at_ + kEdgeLimit);
  return next;
}

bool Pipeline::IsCurrentReply(const LinkId& link, uint64_t epoch) const {
  const Stage& stage = stages_[link.stage];
  return is_open() && stage.has_control && link.number == stage.control_number && epoch == epoch_;
}

void Pipeline::SendOpen(v1::OpenMessage open) {
  v1::EdgeMessage message;
  *message.mutable_open() = std::move(open);
  stages_[0].client->SendEdge(std::move(message));
}

void Pipeline::SendStep(v1::StepMessage step) {
  WL_CHECK(CanSendStep());
  step.set_epoch(epoch_);
  step.set_edge_slot(next_edge_slot_);
  next_edge_slot_ = (next_edge_slot_ + 1) % edge_slots();
  ++unacknowledged_;
  v1::EdgeMessage message;
  *message.mutable_step() = std::move(step);
  stages_[0].client->SendEdge(std::move(message));
}

void Pipeline::SendClose(v1::CloseMessage close) {
  v1::EdgeMessage message;
  *message.mutable_close() = std::move(close);
  stages_[0].client->SendEdge(std::move(message));
}

bool Pipeline::HasWorkers() const {
  return std::any_of(stages_.begin(), stages_.end(),
                     [](const Stage& stage) { return stage.has_control && stage.pid.has_value(); });
}

void Pipeline::CancelLinks() {
  for (Stage& stage : stages_) {
    stage.client->CancelControl();
    stage.client->CancelEdge();
  }
}

void Pipeline::ShutDownWorkers() {
  stopping_ = true;
  for (Stage& stage : stages_) {
    v1::ControlRequest request;
    request.mutable_shutdown();
    stage.client->SendControl(std::move(request));
  }
}

std::string Pipeline::StageText(int index) const {
  const Stage& stage = stages_[index];
  switch (stage.state) {
    case StageState::kServing:
      return "";
    case StageState::kLoading:
      if (AwaitsNext(index)) {
        return absl::StrCat("stage ", index, ": waiting for stage ", index + 1);
      }
      return absl::StrCat("stage ", index, ": loading ", static_cast<int>(stage.loaded * 100),
                          " %");
    case StageState::kConnecting:
      return absl::StrCat("stage ", index, ": connecting");
    case StageState::kDown:
      break;
  }
  return absl::StrCat("stage ", index, ": down (", stage.reason, ")");
}

std::string Pipeline::MissingStages() const {
  std::vector<std::string> missing;
  for (int index = 0; index < stage_count(); ++index) {
    std::string text = StageText(index);
    if (!text.empty()) missing.push_back(std::move(text));
  }
  return absl::StrJoin(missing, "; ");
}

void Pipeline::FillStatus(v1::StatusResponse& status) const {
  constexpr const char* kStates[] = {"down", "connecting", "loading", "serving"};
  for (int index = 0; index < stage_count(); ++index) {
    const Stage& stage = stages_[index];
    const StagePlan& plan = options_.split.stages[index];
    v1::StageStatus& out = *status.add_stages();
    out.set_stage(index);
    if (stage.pid.has_value()) out.set_pid(*stage.pid);
    out.set_layer_begin(plan.layers.begin);
    out.set_layer_end(plan.layers.end);
    out.set_state(AwaitsNext(index) ? "waiting" : kStates[static_cast<int>(stage.state)]);
    out.set_loaded(stage.loaded);
    out.set_device(stage.device);
    out.set_address(stage.address);
    out.set_restarts(stage.restarts);
    out.set_heartbeat_age_seconds(SecondsSince(stage.heard_at));
    out.set_reason(AwaitsNext(index) ? absl::StrCat("for stage ", index + 1) : stage.reason);
    if (stage.state != StageState::kServing) continue;
    out.set_weight_bytes(stage.serving.weight_bytes());
    out.set_cache_bytes(stage.serving.cache_bytes());
    out.set_edge(stage.serving.edge());
  }
}

}  // namespace warpline
