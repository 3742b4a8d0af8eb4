#include "worker/edge_client.h"

#include <unistd.h>

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/error_detail.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/grpc_server.h"
#include "proto/grpc_status.h"
#include "proto/stage_protocol.h"
#include "proto/stream_writer.h"
#include "worker/edge_slots.h"
#include "worker/step_proto.h"

namespace warpline {
namespace {

constexpr std::chrono::milliseconds kRedial{20};
constexpr std::chrono::seconds kSilence{10};  // of a wait that may have a wrong address for reason

}  // namespace

// One attempt at the stream. Keeps itself alive until gRPC is through with it.
class EdgeClient::Call final : public grpc::ClientBidiReactor<v1::EdgeMessage, v1::EdgeAck>,
                               public std::enable_shared_from_this<Call> {
 public:
  explicit Call(std::function<void(const absl::Status&)> on_lost) : on_lost_(std::move(on_lost)) {}

  void Start(v1::Stage::Stub& stub, v1::EdgeMessage hello) {
    self_ = shared_from_this();
    context_.set_wait_for_ready(true);
    stub.async()->Edge(&context_, this);
    AddHold();  // Writes start outside of callbacks; the writer's end drops it.
    StartRead(&ack_);
    StartCall();
    writer_.Send(std::move(hello));
  }

  // Waits until the next stage has admitted or refused the hello. After OK the edge is open: its
  // end goes to `on_lost`, before to the caller.
  absl::Status WaitAdmitted(const std::string& address) {
    MutexLock lock(mutex_);
    SteadyTime log_at = Now() + kSilence;
    while (!admitted_ && !ended_.has_value()) {
      if (changed_.WaitUntil(mutex_, log_at) || Now() < log_at) continue;
      LogWarning("edge to ", address, " is not open yet: the next stage does not answer");
      log_at += kSilence;
    }
    if (ended_.has_value()) return *ended_;
    open_ = true;
    return absl::OkStatus();
  }

  bool Send(v1::EdgeMessage message) { return writer_.Send(std::move(message)); }
  EdgeCredits& credits() { return credits_; }

  // Gives the stream up. Any thread, any time.
  void Cancel() {
    context_.TryCancel();
    writer_.Finish(absl::CancelledError("cancelled"), /*drain=*/false);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return writer_.Finish(absl::OkStatus(), /*drain=*/false);  // OnDone says why.
    if (const absl::Status status = Take(ack_); !status.ok()) {
      LogWarning("edge acknowledgement refused: ", status.message());
      return Cancel();
    }
    StartRead(&ack_);
  }

  void OnWriteDone(bool ok) override { writer_.WriteDone(ok); }

  void OnDone(const grpc::Status& grpc_status) override {
    absl::Status status = FromGrpc(grpc_status);
    if (status.ok()) status = absl::UnavailableError("the next stage closed the edge");
    bool was_open = false;
    {
      MutexLock lock(mutex_);
      ended_ = status;
      was_open = open_;
      changed_.NotifyAll();
    }
    credits_.Break(absl::UnavailableError(absl::StrCat("edge lost: ", status.message())));
    if (was_open) on_lost_(status);
    const std::shared_ptr<Call> last = std::move(self_);
  }

 private:
  absl::Status Take(const v1::EdgeAck& ack) {
    MutexLock lock(mutex_);
    if (admitted_) return credits_.Acknowledge(static_cast<int>(ack.edge_slot()), ack.step_id());
    if (!ack.hello_ok())
      return absl::InvalidArgumentError("the first one does not answer the hello");
    admitted_ = true;
    changed_.NotifyAll();
    return absl::OkStatus();
  }

  const std::function<void(const absl::Status&)> on_lost_;
  grpc::ClientContext context_;
  v1::EdgeAck ack_;  // The one read in flight.
  EdgeCredits credits_{static_cast<int>(kEdgeSlots)};
  StreamWriter<v1::EdgeMessage> writer_{
      [this](const v1::EdgeMessage& message) { StartWrite(&message); },
      [this](const absl::Status&) { RemoveHold(); }};
  Mutex mutex_;
  CondVar changed_;
  bool admitted_ ABSL_GUARDED_BY(mutex_) = false;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Call> self_;
};

EdgeClient::EdgeClient(EdgeTarget target, const PeerSecret& secret,
                       std::function<void(const absl::Status&)> on_lost)
    : target_(std::move(target)),
      secret_(secret),
      on_lost_(std::move(on_lost)),
      channel_(OpenChannel(target_.address)),
      stub_(v1::Stage::NewStub(channel_)) {}

EdgeClient::~EdgeClient() { Break(absl::CancelledError("the edge is given up")); }

absl::StatusOr<v1::EdgeMessage> EdgeClient::Hello(v1::EdgeKind kind) {
  v1::EdgeMessage message;
  v1::EdgeHello& hello = *message.mutable_hello();
  hello.set_protocol_version(kStageProtocolVersion);
  hello.set_epoch(target_.epoch);
  hello.set_fingerprint(target_.fingerprint);
  hello.set_at_layer(static_cast<uint32_t>(target_.at_layer));
  hello.set_width(static_cast<uint32_t>(target_.width));
  hello.set_slot_bytes(static_cast<uint64_t>(target_.slot_bytes));
  hello.set_slot_count(kEdgeSlots);
  hello.set_kind(kind);
  hello.set_secret_proof(secret_.Proof(kEdgePurpose, target_.epoch));
  slots_.reset();
  if (kind == v1::EDGE_KIND_SHM) {
    WL_ASSIGN_OR_RETURN(slots_, SharedSlots::Create(kEdgeSlots, target_.slot_bytes));
    hello.set_shm_pid(getpid());
    hello.set_shm_fd(slots_->fd());
    hello.set_shm_token(slots_->token());
  }
  return message;
}

// One attempt.
absl::Status EdgeClient::Dial(v1::EdgeKind kind) {
  WL_ASSIGN_OR_RETURN(v1::EdgeMessage hello, Hello(kind));
  auto call = std::make_shared<Call>(on_lost_);
  call->Start(*stub_, std::move(hello));
  absl::Status broken;
  {
    MutexLock lock(mutex_);
    call_ = call;
    broken = broken_;
  }
  if (!broken.ok()) call->Cancel();  // Break came before it could find this call.
  WL_RETURN_IF_ERROR(call->WaitAdmitted(target_.address));
  open_call_ = std::move(call);
  return absl::OkStatus();
}

absl::Status EdgeClient::DialUntilAdmitted(v1::EdgeKind kind) {
  while (true) {
    const absl::Status status = Dial(kind);
    {
      MutexLock lock(mutex_);
      if (!broken_.ok()) return broken_;
      // Unavailable: not there yet, or there and without this epoch's assignment. The coordinator
      // bounds how long.
      if (!absl::IsUnavailable(status)) return status;
      const SteadyTime next = Now() + kRedial;
      while (broken_.ok() && Now() < next) broken_changed_.WaitUntil(mutex_, next);
    }
  }
}

absl::Status EdgeClient::Open() {
  const bool try_shm = target_.kind == v1::EDGE_KIND_SHM ||
                       (target_.kind == v1::EDGE_KIND_AUTO && IsLocalAddress(target_.address));
  absl::Status status;
  if (try_shm) {
    status = DialUntilAdmitted(v1::EDGE_KIND_SHM);
    const bool fall_back =
        target_.kind == v1::EDGE_KIND_AUTO &&
        (DetailOf(status).code == "shm_unavailable" || absl::IsResourceExhausted(status));
    if (!fall_back) return Annotate(status, absl::StrCat("edge to ", target_.address));
    LogWarning("edge to ", target_.address, " goes over gRPC: ", status.message());
  }
  return Annotate(DialUntilAdmitted(v1::EDGE_KIND_GRPC), absl::StrCat("edge to ", target_.address));
}

std::string EdgeClient::kind() const { return slots_ != nullptr ? "shm" : "grpc"; }

absl::StatusOr<absl::Span<float>> EdgeClient::Reserve(int64_t value_count) {
  WL_ASSIGN_OR_RETURN(const int slot, open_call_->credits().Acquire());
  const size_t count = static_cast<size_t>(value_count);
  if (slots_ != nullptr) return slots_->slot(slot).subspan(0, count);
  bytes_.resize(count * sizeof(float));
  return absl::Span<float>(reinterpret_cast<float*>(bytes_.data()), count);
}

absl::Status EdgeClient::SendStep(const Step& step) {
  WL_ASSIGN_OR_RETURN(const int slot, open_call_->credits().Acquire());  // The reserved one.
  v1::EdgeMessage message = ToProto(step, slot);
  if (slots_ == nullptr) message.mutable_step()->set_activations(std::move(bytes_));
  open_call_->credits().Commit(step.step_id);
  return Send(std::move(message));
}

absl::Status EdgeClient::SendOpen(const OpenSequence& open) { return Send(ToProto(open)); }
absl::Status EdgeClient::SendClose(const CloseSequence& close) { return Send(ToProto(close)); }

absl::Status EdgeClient::Send(v1::EdgeMessage message) {
  if (open_call_->Send(std::move(message))) return absl::OkStatus();
  return absl::UnavailableError("edge lost");
}

void EdgeClient::Break(const absl::Status& status) {
  std::shared_ptr<Call> call;
  {
    MutexLock lock(mutex_);
    if (broken_.ok()) broken_ = status;
    call = call_;
    broken_changed_.NotifyAll();
  }
  if (call != nullptr) call->Cancel();
}

}  // namespace warpline
