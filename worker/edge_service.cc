#include "worker/edge_service.h"

#include <grpcpp/alarm.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_detail.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/deadline.h"
#include "proto/grpc_status.h"
#include "proto/stage_protocol.h"
#include "proto/stream_writer.h"

namespace warpline {
namespace {

constexpr std::chrono::seconds kHelloLimit{10};

template <typename Value>
absl::Status CheckField(absl::string_view field, const Value& theirs, const Value& ours) {
  if (theirs == ours) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("edge hello: ", field, " is ", theirs, ", this stage has ", ours));
}

absl::Status CheckHello(const v1::EdgeHello& hello, const EdgeExpectation& expected) {
  WL_RETURN_IF_ERROR(
      CheckField("protocol_version", hello.protocol_version(), kStageProtocolVersion));
  if (expected.epoch == 0 || hello.epoch() > expected.epoch) {
    return absl::UnavailableError(absl::StrCat("edge hello: epoch is ", hello.epoch(),
                                               ", this stage was assigned ", expected.epoch,
                                               " so far"));
  }
  WL_RETURN_IF_ERROR(CheckField("epoch", hello.epoch(), expected.epoch));
  WL_RETURN_IF_ERROR(
      CheckField<std::string>("fingerprint", hello.fingerprint(), expected.fingerprint));
  WL_RETURN_IF_ERROR(
      CheckField("at_layer", hello.at_layer(), static_cast<uint32_t>(expected.at_layer)));
  WL_RETURN_IF_ERROR(
      CheckField("width", hello.width(), static_cast<uint32_t>(expected.limits.width)));
  // The coordinator hands on token ids and needs no slots.
  if (!expected.is_first || hello.slot_bytes() != 0) {
    WL_RETURN_IF_ERROR(
        CheckField("slot_bytes", hello.slot_bytes(), static_cast<uint64_t>(expected.slot_bytes)));
  }
  if (hello.slot_count() == 0 || hello.slot_count() > kMaxEdgeSlots) {
    return absl::FailedPreconditionError(absl::StrCat("edge hello: slot_count is ",
                                                      hello.slot_count(),
                                                      ", this stage takes 1 to ", kMaxEdgeSlots));
  }
  const bool kind_fits =
      hello.kind() == v1::EDGE_KIND_GRPC ||
      (expected.is_first ? hello.kind() == v1::EDGE_KIND_AUTO : hello.kind() == v1::EDGE_KIND_SHM);
  if (!kind_fits) {
    return absl::FailedPreconditionError(
        absl::StrCat("edge hello: kind is ", static_cast<int>(hello.kind()),
                     ", this stage takes GRPC", expected.is_first ? "" : " and SHM"));
  }
  return absl::OkStatus();
}

absl::StatusOr<AdmittedEdge> Prepare(const v1::EdgeHello& hello, const EdgeExpectation& expected) {
  AdmittedEdge edge{.limits = expected.limits};
  edge.limits.edge_slot_count = static_cast<int>(hello.slot_count());
  if (expected.is_first) return edge;
  edge.limits.payload = Payload::kBytes;
  if (hello.kind() != v1::EDGE_KIND_SHM) return edge;
  absl::StatusOr<std::unique_ptr<SharedSlotsView>> slots =
      SharedSlotsView::Map({.pid = static_cast<pid_t>(hello.shm_pid()),
                            .fd = hello.shm_fd(),
                            .token = hello.shm_token(),
                            .slot_count = static_cast<int>(hello.slot_count()),
                            .slot_bytes = expected.slot_bytes});
  if (!slots.ok()) return WithDetail(slots.status(), {.code = "shm_unavailable"});
  edge.limits.payload = Payload::kSharedSlot;
  edge.slots = *std::move(slots);
  return edge;
}

}  // namespace

// One edge: the previous stage's messages, in its order, and our acknowledgements, which are its
// credits. Keeps itself alive until gRPC is through with it; the executor may hold it longer.
class EdgeReactor final : public grpc::ServerBidiReactor<v1::EdgeMessage, v1::EdgeAck>,
                          public Inlet,
                          public std::enable_shared_from_this<EdgeReactor> {
 public:
  explicit EdgeReactor(EdgeGate& gate) : gate_(gate) {}

  void Start() {
    self_ = shared_from_this();
    hello_alarm_.Set(DeadlineIn(kHelloLimit), [weak = weak_from_this()](bool expired) {
      const std::shared_ptr<EdgeReactor> self = weak.lock();
      if (expired && self != nullptr) {
        self->End(absl::DeadlineExceededError("no edge hello came in time"));
      }
    });
    StartRead(&message_);
  }

  void End(const absl::Status& status) { writer_.Finish(status, /*drain=*/false); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      return End(admitted_ ? absl::OkStatus()
                           : absl::InvalidArgumentError("the edge ended before its hello"));
    }
    if (const absl::Status status = Take(); !status.ok()) return Refuse(status);
    StartRead(&message_);
  }
  void OnWriteDone(bool ok) override { writer_.WriteDone(ok); }
  void OnDone() override {
    hello_alarm_.Cancel();
    gate_.Left(this);
    const std::shared_ptr<EdgeReactor> last = std::move(self_);
  }

  void Acknowledge(uint64_t step_id, int edge_slot) override {
    {
      MutexLock lock(mutex_);
      --unacknowledged_;
      if (edge_.slots != nullptr) slots_in_use_ &= ~(1u << edge_slot);
    }
    v1::EdgeAck ack;
    ack.set_step_id(step_id);
    ack.set_edge_slot(static_cast<uint32_t>(edge_slot));
    writer_.Send(std::move(ack));
  }

 private:
  void Refuse(const absl::Status& status) {
    if (absl::IsCancelled(status)) return End(status);  // The worker stops; nothing is wrong.
    if (admitted_) {
      gate_.executor().CountRefused();
      LogWarning("edge message refused epoch=", edge_.limits.epoch, ": ", status.message());
    } else if (!absl::IsUnavailable(status)) {  // That one is tried again every moment.
      LogWarning("edge refused: ", EscapeForLog(status.message()));
    }
    End(status);
  }

  absl::Status Take() {
    if (!admitted_) return TakeHello();
    gate_.Used(this);
    EdgeTask task{.epoch = edge_.limits.epoch, .inlet = self_};
    switch (message_.message_case()) {
      case v1::EdgeMessage::kOpen: {
        WL_ASSIGN_OR_RETURN(task.item, reader_->Open(message_.open()));
        break;
      }
      case v1::EdgeMessage::kClose: {
        WL_ASSIGN_OR_RETURN(task.item, reader_->Close(message_.close()));
        break;
      }
      case v1::EdgeMessage::kStep: {
        WL_ASSIGN_OR_RETURN(IncomingStep step, reader_->TakeStep(*message_.mutable_step()));
        WL_RETURN_IF_ERROR(TakeCredit(step));
        task.item = std::move(step);
        break;
      }
      case v1::EdgeMessage::kHello:
        return absl::InvalidArgumentError("edge message: a second hello");
      case v1::EdgeMessage::MESSAGE_NOT_SET:
        return absl::InvalidArgumentError("edge message: none of hello, open, step and close");
    }
    return gate_.executor().Submit(std::move(task));
  }

  absl::Status TakeHello() {
    if (message_.message_case() != v1::EdgeMessage::kHello) {
      return absl::InvalidArgumentError("edge message: the first one must be a hello");
    }
    hello_alarm_.Cancel();
    WL_ASSIGN_OR_RETURN(edge_, gate_.Admit(message_.hello(), self_));
    admitted_ = true;
    reader_ = std::make_unique<EdgeReader>(edge_.limits);
    v1::EdgeAck ack;
    ack.set_hello_ok(true);
    writer_.Send(std::move(ack));
    return absl::OkStatus();
  }

  absl::Status TakeCredit(IncomingStep& step) {
    MutexLock lock(mutex_);
    if (unacknowledged_ >= edge_.limits.edge_slot_count) {
      return absl::ResourceExhaustedError(absl::StrCat("edge message: step ", step.step.step_id,
                                                       " came without a credit, ", unacknowledged_,
                                                       " are under way"));
    }
    if (edge_.slots != nullptr) {
      if ((slots_in_use_ >> step.edge_slot & 1u) != 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat("edge message: step.edge_slot ", step.edge_slot, " is still in use"));
      }
      slots_in_use_ |= 1u << step.edge_slot;
      const size_t row_count = static_cast<size_t>(step.step.RowCount());
      step.rows = edge_.slots->slot(step.edge_slot)
                      .subspan(0, row_count * static_cast<size_t>(edge_.limits.width));
    }
    ++unacknowledged_;
    return absl::OkStatus();
  }

  EdgeGate& gate_;
  v1::EdgeMessage message_;  // The one read in flight.
  bool admitted_ = false;    // Used by the read callbacks, which follow one another.
  AdmittedEdge edge_;
  std::unique_ptr<EdgeReader> reader_;
  grpc::Alarm hello_alarm_;
  StreamWriter<v1::EdgeAck> writer_{[this](const v1::EdgeAck& ack) { StartWrite(&ack); },
                                    [this](const absl::Status& status) { Finish(ToGrpc(status)); }};
  Mutex mutex_;
  int unacknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t slots_in_use_ ABSL_GUARDED_BY(mutex_) = 0;  // A bit for each shared slot.
  std::shared_ptr<EdgeReactor> self_;
};

void EdgeGate::Begin(const EdgeExpectation& expectation) {
  std::shared_ptr<EdgeReactor> old;
  {
    MutexLock lock(mutex_);
    expectation_ = expectation;
    old = std::move(current_);
    used_ = false;
  }
  if (old != nullptr) old->End(absl::CancelledError("a new epoch begins"));
}

absl::StatusOr<AdmittedEdge> EdgeGate::Admit(const v1::EdgeHello& hello,
                                             const std::shared_ptr<EdgeReactor>& reactor) {
  WL_RETURN_IF_ERROR(secret_.Check(kEdgePurpose, hello.epoch(), hello.secret_proof()));
  EdgeExpectation expected;
  {
    MutexLock lock(mutex_);
    expected = expectation_;
  }
  WL_RETURN_IF_ERROR(CheckHello(hello, expected));
  WL_ASSIGN_OR_RETURN(AdmittedEdge edge, Prepare(hello, expected));
  MutexLock lock(mutex_);
  WL_RETURN_IF_ERROR(CheckField("epoch", hello.epoch(), expectation_.epoch));
  if (current_ != nullptr) {
    return absl::AlreadyExistsError(
        absl::StrCat("edge hello: epoch ", hello.epoch(), " has an edge already"));
  }
  if (used_) {
    return absl::FailedPreconditionError(
        absl::StrCat("edge hello: the edge of epoch ", hello.epoch(), " has ended"));
  }
  current_ = reactor;
  return edge;
}

void EdgeGate::Used(const EdgeReactor* reactor) {
  MutexLock lock(mutex_);
  if (current_.get() == reactor) used_ = true;
}

void EdgeGate::Left(const EdgeReactor* reactor) {
  std::shared_ptr<EdgeReactor> gone;  // Released without the lock.
  MutexLock lock(mutex_);
  if (current_.get() == reactor) gone = std::move(current_);
}

grpc::ServerBidiReactor<v1::EdgeMessage, v1::EdgeAck>* StartEdge(EdgeGate& gate) {
  auto reactor = std::make_shared<EdgeReactor>(gate);
  reactor->Start();
  return reactor.get();
}

}  // namespace warpline
