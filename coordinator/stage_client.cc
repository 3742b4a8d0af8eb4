#include "coordinator/stage_client.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <utility>

#include "base/status.h"
#include "proto/grpc_server.h"
#include "proto/grpc_status.h"
#include "proto/stage.grpc.pb.h"
#include "proto/stream_writer.h"

namespace warpline {
namespace {

ControlReplyEvent EventOf(const LinkId& link, v1::ControlReply reply) {
  return {.link = link, .reply = std::move(reply)};
}
EdgeAckEvent EventOf(const LinkId& link, v1::EdgeAck ack) {
  return {.link = link, .ack = std::move(ack)};
}

// One stream. gRPC holds it until OnDone; the engine thread may write into it for longer.
template <typename Out, typename In>
class LinkStream final : public grpc::ClientBidiReactor<Out, In>,
                         public std::enable_shared_from_this<LinkStream<Out, In>> {
 public:
  LinkStream(LinkId link, std::shared_ptr<EngineInbox> inbox)
      : link_(link), inbox_(std::move(inbox)) {
    context_.set_wait_for_ready(true);
  }

  // `call` binds this reactor to its method.
  template <typename Call>
  void Start(const Call& call, Out first) {
    self_ = this->shared_from_this();
    call(&context_, this);
    this->AddHold();  // Writes start outside of callbacks; the writer's end drops it.
    Send(std::move(first));
    this->StartRead(&incoming_);
    this->StartCall();
  }

  void Send(Out message) { writer_.Send(std::move(message)); }
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return writer_.Finish(absl::OkStatus(), /*drain=*/false);  // OnDone says why.
    Tell(EventOf(link_, std::move(incoming_)));
    incoming_.Clear();
    this->StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override { writer_.WriteDone(ok); }

  void OnDone(const grpc::Status& status) override {
    Tell(LinkEndedEvent{.link = link_, .status = FromGrpc(status), .stream = std::move(self_)});
  }

 private:
  // Until the engine is gone the inbox has room for all that steps in flight can give.
  void Tell(EngineEvent event) { (void)inbox_->TryPush(std::move(event)); }

  const LinkId link_;
  const std::shared_ptr<EngineInbox> inbox_;
  grpc::ClientContext context_;
  StreamWriter<Out> writer_{[this](const Out& message) { this->StartWrite(&message); },
                            [this](const absl::Status&) { this->RemoveHold(); }};
  In incoming_;  // The one read in flight.
  std::shared_ptr<LinkStream> self_;
};

using ControlStream = LinkStream<v1::ControlRequest, v1::ControlReply>;
using EdgeStream = LinkStream<v1::EdgeMessage, v1::EdgeAck>;

}  // namespace

struct StageClient::Impl {
  int stage = 0;
  std::shared_ptr<EngineInbox> inbox;
  std::unique_ptr<v1::Stage::Stub> stub;
  uint64_t last_number = 0;
  std::shared_ptr<ControlStream> control;
  std::shared_ptr<EdgeStream> edge;
};

StageClient::StageClient(int stage, const std::string& address, std::shared_ptr<EngineInbox> inbox)
    : impl_(std::make_unique<Impl>()) {
  impl_->stage = stage;
  impl_->inbox = std::move(inbox);
  impl_->stub = v1::Stage::NewStub(OpenChannel(address));
}

StageClient::~StageClient() {
  CancelControl();
  CancelEdge();
}

LinkId StageClient::OpenControl(v1::ControlRequest first) {
  CancelControl();
  const LinkId link{.stage = impl_->stage, .is_edge = false, .number = ++impl_->last_number};
  impl_->control = std::make_shared<ControlStream>(link, impl_->inbox);
  impl_->control->Start(
      [this](grpc::ClientContext* context, ControlStream* stream) {
        impl_->stub->async()->Control(context, stream);
      },
      std::move(first));
  return link;
}

LinkId StageClient::OpenEdge(v1::EdgeMessage first) {
  CancelEdge();
  const LinkId link{.stage = impl_->stage, .is_edge = true, .number = ++impl_->last_number};
  impl_->edge = std::make_shared<EdgeStream>(link, impl_->inbox);
  impl_->edge->Start([this](grpc::ClientContext* context,
                            EdgeStream* stream) { impl_->stub->async()->Edge(context, stream); },
                     std::move(first));
  return link;
}

void StageClient::SendControl(v1::ControlRequest request) {
  if (impl_->control != nullptr) impl_->control->Send(std::move(request));
}

void StageClient::SendEdge(v1::EdgeMessage message) {
  if (impl_->edge != nullptr) impl_->edge->Send(std::move(message));
}

void StageClient::CancelControl() {
  if (impl_->control != nullptr) impl_->control->Cancel();
}

void StageClient::CancelEdge() {
  if (impl_->edge != nullptr) impl_->edge->Cancel();
}

}  // namespace warpline
