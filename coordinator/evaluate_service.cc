// Evaluate: logits after given tokens, streamed as they come.
#include <atomic>
#include <deque>
#include <limits>
#include <utility>

#include "base/error_detail.h"
#include "base/status.h"
#include "coordinator/client_patience.h"
#include "coordinator/inference_service.h"
#include "coordinator/request_checks.h"
#include "coordinator/stream_outbox.h"
#include "proto/grpc_status.h"

namespace warpline {
namespace {

// Rows that wait for the client; while there are more, no further step is sent for the sequence.
constexpr int64_t kMaxWaitingBytes = 64 << 20;

// One call; shared as GenerateCall is.
class EvaluateCall final : public grpc::ServerWriteReactor<v1::EvaluateResponse>,
                           public SequenceSink,
                           public std::enable_shared_from_this<EvaluateCall> {
 public:
  EvaluateCall(const ServiceContext& context, grpc::CallbackServerContext& call,
               const v1::EvaluateRequest& request)
      : context_(context), request_(request), patience_(call.deadline()) {}

  void Begin() {
    self_ = shared_from_this();
    const absl::Status status = Submit();
    if (status.ok()) return;
    context_.metrics.CountRequest(status);
    Do(outbox_.End(status));
  }

  void OnWriteDone(bool ok) override {
    const int64_t bytes = outbox_front_bytes_.exchange(0);
    const int64_t before = waiting_bytes_.fetch_sub(bytes);
    if (before > kMaxWaitingBytes && before - bytes <= kMaxWaitingBytes) context_.engine.Resume();
    Do(outbox_.Next(ok));
  }
  void OnCancel() override {
    cancelled_ = true;
    if (const uint64_t id = sequence_id_; id != 0) context_.engine.Cancel(id, patience_.WhyEnded());
  }
  void OnDone() override { self_.reset(); }

  // SequenceSink: the engine's thread.
  void OnAccepted() override {}
  void OnLogits(v1::LogitRows rows) override {
    waiting_bytes_ += static_cast<int64_t>(rows.values().size());
    v1::EvaluateResponse& response = waiting_.emplace_back();
    response.set_first_position(rows.first_position());
    response.set_row_count(rows.row_count());
    response.set_vocab_size(context_.model.vocab_size);
    response.set_values(std::move(*rows.mutable_values()));
  }
  bool Blocked() const override { return waiting_bytes_ > kMaxWaitingBytes; }
  void OnFinished(const absl::Status& status, FinishKind) override { end_ = status; }
  void Flush() override {
    for (v1::EvaluateResponse& response : waiting_) Do(outbox_.Push(std::move(response)));
    waiting_.clear();
    if (end_.has_value()) Do(outbox_.End(*end_));
  }

 private:
  absl::Status Submit() {
    SequenceRequest sequence{.sink = shared_from_this()};
    sequence.tokens.assign(request_.tokens().begin(), request_.tokens().end());
    WL_RETURN_IF_ERROR(CheckTokenIds(sequence.tokens, context_.model.vocab_size, "tokens"));
    const auto count = static_cast<int64_t>(sequence.tokens.size());
    if (count > context_.model.context_length) {
      return InvalidField(
          "tokens",
          absl::StrCat(count, " tokens, the context length is ", context_.model.context_length),
          "context_length_exceeded");
    }
    const int64_t last = request_.logits_last();
    sequence.logits_from = last == 0 ? 0 : std::max<int64_t>(0, count - last);
    if (request_.decode_from() > 0) sequence.decode_from = request_.decode_from();
    WL_ASSIGN_OR_RETURN(const uint64_t id, context_.engine.Submit(std::move(sequence)));
    sequence_id_ = id;
    if (cancelled_) context_.engine.Cancel(id, patience_.WhyEnded());
    return absl::OkStatus();
  }

  void Do(const StreamOutbox<v1::EvaluateResponse>::Turn& turn) {
    if (turn.write != nullptr) {
      outbox_front_bytes_ = static_cast<int64_t>(turn.write->values().size());
      StartWrite(turn.write);
    }
    if (turn.finish.has_value()) Finish(ToGrpc(*turn.finish));
  }

  const ServiceContext& context_;
  const v1::EvaluateRequest& request_;  // gRPC's, until OnDone.
  const ClientPatience patience_;
  StreamOutbox<v1::EvaluateResponse> outbox_;
  std::atomic<int64_t> outbox_front_bytes_{0};  // of the write in flight
  std::atomic<int64_t> waiting_bytes_{0};
  std::atomic<bool> cancelled_{false};
  std::atomic<uint64_t> sequence_id_{0};

  // The engine's.
  std::deque<v1::EvaluateResponse> waiting_;  // for Flush
  std::optional<absl::Status> end_;

  std::shared_ptr<EvaluateCall> self_;  // gRPC's share.
};

}  // namespace

grpc::ServerWriteReactor<v1::EvaluateResponse>* StartEvaluate(const ServiceContext& context,
                                                              grpc::CallbackServerContext& call,
                                                              const v1::EvaluateRequest& request) {
  auto reactor = std::make_shared<EvaluateCall>(context, call, request);
  reactor->Begin();
  return reactor.get();
}

}  // namespace warpline
