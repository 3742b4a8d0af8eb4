#include "coordinator/fakes.h"

#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/status.h"
#include "proto/grpc_server.h"
#include "proto/stage_protocol.h"

namespace warpline {

FakeWorker::FakeWorker(const std::string& address) {
  grpc::ServerBuilder builder;
  builder.RegisterService(this);
  absl::StatusOr<ServerHandle> handle = StartServer(builder, address);
  WL_CHECK(handle.ok());
  server_ = std::move(handle->server);
}

FakeWorker::~FakeWorker() { server_->Shutdown(std::chrono::system_clock::now()); }

void FakeWorker::Behave(Behaviour behaviour) {
  MutexLock lock(mutex_);
  behaviour_ = std::move(behaviour);
}

void FakeWorker::ReleaseResults() {
  MutexLock lock(mutex_);
  behaviour_.hold_results = false;
  for (const v1::ControlReply& reply : held_) Reply(reply);
  held_.clear();
}

std::vector<v1::EdgeMessage> FakeWorker::Received() {
  MutexLock lock(mutex_);
  return received_;
}

bool FakeWorker::Await(const std::function<bool(const std::vector<v1::EdgeMessage>&)>& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  MutexLock lock(mutex_);
  while (!condition(received_)) {
    if (!received_changed_.WaitUntil(mutex_, limit)) return condition(received_);
  }
  return true;
}

void FakeWorker::Reply(const v1::ControlReply& reply) {
  if (control_ != nullptr) control_->Write(reply);
}

grpc::Status FakeWorker::Control(grpc::ServerContext*, ControlStream* stream) {
  v1::ControlRequest request;
  while (stream->Read(&request)) {
    if (!request.has_assign()) break;
    ++assignments_;
    const v1::Assign& assign = request.assign();
    MutexLock lock(mutex_);
    control_ = stream;
    if (behaviour_.silent) continue;
    v1::ControlReply reply;
    v1::Hello& hello = *reply.mutable_hello();
    hello.set_protocol_version(kStageProtocolVersion);
    hello.set_epoch(assign.epoch());
    hello.set_fingerprint(assign.fingerprint());
    hello.set_layer_begin(assign.layer_begin());
    hello.set_layer_end(assign.layer_end());
    hello.set_width(assign.width());
    hello.set_slot_bytes(uint64_t{assign.max_chunk_rows()} * assign.width() * 4);
    hello.set_pid(getpid());
    hello.set_version(WARPLINE_VERSION);
    if (behaviour_.change_hello != nullptr) behaviour_.change_hello(hello);
    Reply(reply);
    if (behaviour_.stops_loading_at.has_value()) {
      reply.mutable_loading()->set_epoch(assign.epoch());
      reply.mutable_loading()->set_fraction(*behaviour_.stops_loading_at);
    } else {
      reply.mutable_serving()->set_epoch(assign.epoch());
    }
    Reply(reply);
  }
  MutexLock lock(mutex_);
  if (control_ == stream) control_ = nullptr;
  return grpc::Status::OK;
}

grpc::Status FakeWorker::Edge(grpc::ServerContext*,
                              grpc::ServerReaderWriter<v1::EdgeAck, v1::EdgeMessage>* stream) {
  v1::EdgeMessage message;
  uint64_t epoch = 0;
  while (stream->Read(&message)) {
    v1::EdgeAck ack;
    if (message.has_hello()) {
      epoch = message.hello().epoch();
      ack.set_hello_ok(true);
      stream->Write(ack);
      continue;
    }
    if (message.has_step()) {
      ack.set_step_id(message.step().step_id());
      ack.set_edge_slot(message.step().edge_slot());
      stream->Write(ack);
    }
    MutexLock lock(mutex_);
    received_.push_back(message);
    received_changed_.NotifyAll();
    if (message.has_step()) Answer(message.step());
    if (!message.has_close()) continue;
    v1::ControlReply reply;
    v1::SequenceClosed& closed = *reply.mutable_closed();
    closed.set_epoch(epoch);
    closed.set_sequence_id(message.close().sequence_id());
    closed.set_generation(message.close().generation());
    closed.set_kv_slot(message.close().kv_slot());
    Reply(reply);
  }
  return grpc::Status::OK;
}

void FakeWorker::Answer(const v1::StepMessage& step) {
  v1::ControlReply reply;
  v1::StepResult result;
  result.set_epoch(step.epoch());
  result.set_step_id(step.step_id());
  for (v1::StepEntryMessage entry : step.entries()) {
    int32_t& drawn = drawn_[entry.sequence_id()];
    if (entry.token_ids(0) == kTokenDrawnBefore) entry.set_token_ids(0, drawn);
    if (behaviour_.fails != nullptr && behaviour_.fails(entry)) {
      v1::StepFailure& failure = *reply.mutable_failure();
      failure.set_epoch(step.epoch());
      failure.set_step_id(step.step_id());
      failure.set_sequence_id(entry.sequence_id());
      failure.set_generation(entry.generation());
      failure.set_code(static_cast<int>(absl::StatusCode::kInternal));
      failure.set_message("logits are not finite");
      failure.set_detail_code("numerical_error");
      Reply(reply);
      continue;
    }
    if (!entry.sample()) continue;
    v1::SampledToken& token = *result.add_tokens();
    token.set_sequence_id(entry.sequence_id());
    token.set_generation(entry.generation());
    drawn = entry.token_ids(entry.token_ids_size() - 1) + 1;
    token.set_token_id(drawn);
  }
  *reply.mutable_result() = std::move(result);
  if (behaviour_.hold_results) {
    held_.push_back(std::move(reply));
    return;
  }
  Reply(reply);
  if (behaviour_.repeat_results) Reply(reply);
}

}  // namespace warpline
