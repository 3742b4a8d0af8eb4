#include "coordinator/stage_client.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <utility>

#include "base/status.h"
#include "coordinator/write_queue.h"
#include "proto/grpc_server.h"
#include "proto/grpc_status.h"
#include "proto/stage.grpc.pb.h"

namespace warpline {
namespace {

ControlReplyEvent EventOf(const LinkId& link, v1::ControlReply reply) {
  return {.link = link, .reply = std::move(reply)};
}
EdgeAckEvent EventOf(const LinkId& link, v1::EdgeAck ack) {
  return {.link = link, .ack = std::move(ack)};
}

// One stream. gRPC holds it until OnDone; the engine thread writes into it until it has released
// the hold, so that no write can meet the stream's end.
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
    this->AddHold();
    Send(std::move(first));
    this->StartRead(&incoming_);
    this->StartCall();
  }

  void Send(Out message) {
    if (const Out* next = writes_.Push(std::move(message)); next != nullptr) this->StartWrite(next);
  }
  void Cancel() { context_.TryCancel(); }
  const LinkId& link() const { return link_; }

  void OnReadDone(bool ok) override {
    if (!ok) {
      writes_.Close();
      const bool told =
          Tell(LinkClosingEvent{.link = link_, .release = [this] { this->RemoveHold(); }});
      if (!told) this->RemoveHold();  // The engine is gone: nobody writes any more.
      return;
    }
    Tell(EventOf(link_, std::move(incoming_)));
    incoming_.Clear();
    this->StartRead(&incoming_);
  }

  void OnWriteDone(bool) override {  // That a stream is broken is told by its read.
    if (const Out* next = writes_.Next(); next != nullptr) this->StartWrite(next);
  }

  void OnDone(const grpc::Status& status) override {
    Tell(LinkEndedEvent{.link = link_, .status = FromGrpc(status), .stream = std::move(self_)});
  }

 private:
  // False once the engine is gone. Until then the inbox has room for all that steps in flight can
  // give.
  bool Tell(EngineEvent event) { return inbox_->TryPush(std::move(event)); }

  const LinkId link_;
  const std::shared_ptr<EngineInbox> inbox_;
  grpc::ClientContext context_;
  WriteQueue<Out> writes_;
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

void StageClient::Forget(const LinkId& link) {
  if (impl_->control != nullptr && impl_->control->link() == link) impl_->control.reset();
  if (impl_->edge != nullptr && impl_->edge->link() == link) impl_->edge.reset();
}

}  // namespace warpline
