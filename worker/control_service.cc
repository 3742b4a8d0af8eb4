#include "worker/control_service.h"

#include <grpcpp/alarm.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/deadline.h"
#include "proto/grpc_status.h"
#include "proto/stage_protocol.h"
#include "proto/stream_writer.h"
#include "worker/control_check.h"
#include "worker/edge_client.h"

namespace warpline {
namespace {

constexpr std::chrono::seconds kAssignLimit{10};
constexpr size_t kLargeReplies =
    4;  // 1 in flight, and what keeps the executor from waiting for each

int64_t SlotBytes(const StageAssignment& assignment, const StageFacts& facts) {
  return int64_t{assignment.max_chunk_rows} * facts.residual_width *
         static_cast<int64_t>(sizeof(float));
}

v1::ControlReply HelloFor(const StageAssignment& assignment, const StageFacts& facts) {
  v1::ControlReply reply;
  v1::Hello& hello = *reply.mutable_hello();
  hello.set_protocol_version(kStageProtocolVersion);
  hello.set_epoch(assignment.epoch);
  hello.set_fingerprint(facts.fingerprint);
  hello.set_layer_begin(static_cast<uint32_t>(assignment.layers.begin));
  hello.set_layer_end(static_cast<uint32_t>(assignment.layers.end));
  hello.set_width(static_cast<uint32_t>(facts.residual_width));
  hello.set_slot_bytes(static_cast<uint64_t>(SlotBytes(assignment, facts)));
  hello.set_pid(getpid());
  hello.set_capability(facts.capability);
  hello.set_version(WARPLINE_VERSION);
  return reply;
}

EdgeExpectation ExpectationFor(const StageAssignment& assignment, const StageFacts& facts) {
  return {.epoch = assignment.epoch,
          .fingerprint = facts.fingerprint,
          .at_layer = assignment.layers.begin,
          .is_first = assignment.is_first(),
          .slot_bytes = SlotBytes(assignment, facts),
          .limits = {.epoch = assignment.epoch,
                     .slot_count = assignment.slot_count,
                     .page_count = assignment.page_count,
                     .max_context = assignment.max_context,
                     .max_chunk_rows = assignment.max_chunk_rows,
                     .width = facts.residual_width,
                     .n_vocab = facts.n_vocab,
                     .draws = assignment.is_first() && assignment.is_last()}};
}

}  // namespace

// Keeps itself alive until gRPC is through with it; the executor may hold it longer.
class ControlReactor final : public grpc::ServerBidiReactor<v1::ControlRequest, v1::ControlReply>,
                             public ControlSink,
                             public std::enable_shared_from_this<ControlReactor> {
 public:
  explicit ControlReactor(ControlDesk& desk) : desk_(desk) {}

  void Start() {
    self_ = shared_from_this();
    assign_alarm_.Set(DeadlineIn(kAssignLimit), [weak = weak_from_this()](bool expired) {
      const std::shared_ptr<ControlReactor> self = weak.lock();
      if (expired && self != nullptr) {
        self->End(absl::DeadlineExceededError("no assignment came in time"));
      }
    });
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      desk_.Left(this);
      return End(assigned_ ? absl::OkStatus()
                           : absl::InvalidArgumentError("the stream ended without an assignment"));
    }
    if (const absl::Status status = Take(); !status.ok()) {
      LogWarning("control request refused: ", EscapeForLog(status.message()));
      return End(status);
    }
    StartRead(&request_);
  }
  void OnWriteDone(bool ok) override { writer_.WriteDone(ok); }
  void OnCancel() override {
    desk_.Left(this);
    writer_.Finish(absl::CancelledError("the coordinator left"), /*drain=*/false);
  }
  void OnDone() override {
    assign_alarm_.Cancel();
    desk_.Left(this);
    const std::shared_ptr<ControlReactor> last = std::move(self_);
  }

  void Send(v1::ControlReply reply) override { writer_.Send(std::move(reply)); }
  bool SendLarge(v1::ControlReply reply) override {
    return writer_.SendWithin(std::move(reply), kLargeReplies);
  }
  void End(const absl::Status& status) override { writer_.Finish(status, /*drain=*/true); }

 private:
  absl::Status Take() {
    switch (request_.request_case()) {
      case v1::ControlRequest::kAssign:
        WL_RETURN_IF_ERROR(desk_.Assign(request_.assign(), self_));
        assigned_ = true;
        assign_alarm_.Cancel();
        return absl::OkStatus();
      case v1::ControlRequest::kShutdown:
        if (!assigned_) return absl::FailedPreconditionError("shutdown before an assignment");
        desk_.Shutdown();
        return absl::OkStatus();
      case v1::ControlRequest::REQUEST_NOT_SET:
        break;
    }
    return absl::InvalidArgumentError("control request: neither assign nor shutdown");
  }

  ControlDesk& desk_;
  v1::ControlRequest request_;  // The one read in flight.
  bool assigned_ = false;       // Used by the read callbacks, which follow one another.
  grpc::Alarm assign_alarm_;
  StreamWriter<v1::ControlReply> writer_{
      [this](const v1::ControlReply& reply) { StartWrite(&reply); },
      [this](const absl::Status& status) { Finish(ToGrpc(status)); }};
  std::shared_ptr<ControlReactor> self_;
};

absl::Status ControlDesk::Take(const v1::Assign& assign,
                               const std::shared_ptr<ControlReactor>& reactor) {
  MutexLock lock(mutex_);
  if (owner_ != nullptr && owner_ != reactor.get()) {
    return absl::AlreadyExistsError("this worker has a coordinator already");
  }
  if (assign.epoch() <= epoch_) {
    return absl::FailedPreconditionError(absl::StrCat("assignment: epoch is ", assign.epoch(),
                                                      ", this worker has had ", epoch_, " before"));
  }
  owner_ = reactor.get();
  epoch_ = assign.epoch();
  return absl::OkStatus();
}

absl::Status ControlDesk::Assign(const v1::Assign& assign,
                                 const std::shared_ptr<ControlReactor>& reactor) {
  WL_RETURN_IF_ERROR(options_.secret.Check(kControlPurpose, assign.epoch(), assign.secret_proof()));
  {
    MutexLock lock(mutex_);
    if (owner_ != nullptr && owner_ != reactor.get()) {
      return absl::AlreadyExistsError("this worker has a coordinator already");
    }
  }
  if (assign.fingerprint() != options_.facts.fingerprint) options_.stop(kExitModelFile);
  WL_ASSIGN_OR_RETURN(const StageAssignment assignment, CheckAssign(assign, options_.facts));
  WL_RETURN_IF_ERROR(Take(assign, reactor));
  std::shared_ptr<Outlet> outlet;
  if (!assignment.is_last()) {
    outlet = std::make_shared<EdgeClient>(
        EdgeTarget{.address = assignment.next_address,
                   .kind = assignment.next_edge,
                   .epoch = assignment.epoch,
                   .fingerprint = options_.facts.fingerprint,
                   .at_layer = assignment.layers.end,
                   .width = options_.facts.residual_width,
                   .slot_bytes = SlotBytes(assignment, options_.facts)},
        options_.secret, executor_.EdgeLostHandler(assignment.epoch));
  }
  LogInfo("assigned stage=", assignment.stage, " of=", assignment.stage_count,
          " layers=", assignment.layers.begin, "..", assignment.layers.end,
          " epoch=", assignment.epoch);
  reactor->Send(HelloFor(assignment, options_.facts));
  // First the gate, then the executor: whoever hears that the stage serves may dial at once. What
  // is dialled earlier brings no more than a hello, since sequences begin when all stages serve.
  gate_.Begin(ExpectationFor(assignment, options_.facts));
  return executor_.Begin(assignment, reactor, std::move(outlet));
}

void ControlDesk::Left(const ControlReactor* reactor) {
  {
    MutexLock lock(mutex_);
    if (owner_ != reactor) return;
  }
  options_.stop(0);
}

grpc::ServerBidiReactor<v1::ControlRequest, v1::ControlReply>* StartControl(ControlDesk& desk) {
  auto reactor = std::make_shared<ControlReactor>(desk);
  reactor->Start();
  return reactor.get();
}

}  // namespace warpline
