// Evaluate: logits after given tokens, streamed as they come.
#include <atomic>
#include <deque>
#include <limits>
#include <utility>

#include "base/error_detail.h"
#include "base/status.h"
#include "coordinator/inference_service.h"
#include "coordinator/one_request_reactor.h"
#include "coordinator/request_checks.h"
#include "proto/grpc_status.h"
#include "proto/stream_writer.h"

namespace warpline {
namespace {

// Rows that wait for the client; while there are more, no further step is sent for the sequence.
constexpr int64_t kMaxWaitingBytes = 64 << 20;

// One call; shared as GenerateCall is.
class EvaluateCall final : public OneRequestReactor<v1::EvaluateRequest, v1::EvaluateResponse>,
                           public SequenceSink {
 public:
  EvaluateCall(const ServiceContext& context, grpc::CallbackServerContext& call)
      : OneRequestReactor(call, context.request_limit), context_(context) {}

  void OnWriteDone(bool ok) override {
    const int64_t bytes = written_bytes_.exchange(0);
    const int64_t before = waiting_bytes_.fetch_sub(bytes);
    if (before > kMaxWaitingBytes && before - bytes <= kMaxWaitingBytes) context_.engine.Resume();
    writer_.WriteDone(ok);
  }
  void OnCancel() override {
    cancelled_ = true;
    if (const uint64_t id = sequence_id_; id != 0)
      context_.engine.Cancel(id, patience().WhyEnded());
  }

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
    for (v1::EvaluateResponse& response : waiting_) writer_.Send(std::move(response));
    waiting_.clear();
    if (end_.has_value()) writer_.Finish(*end_, /*drain=*/true);
  }

 private:
  void OnRequest(const absl::Status& came) override {
    const absl::Status status = came.ok() ? Submit() : came;
    if (status.ok()) return;
    context_.metrics.CountRequest(status);
    writer_.Finish(status, /*drain=*/true);
  }

  absl::Status Submit() {
    SequenceRequest sequence{.sink = std::static_pointer_cast<EvaluateCall>(shared_from_this())};
    sequence.tokens.assign(request().tokens().begin(), request().tokens().end());
    WL_RETURN_IF_ERROR(CheckTokenIds(sequence.tokens, context_.model.vocab_size, "tokens"));
    const auto count = static_cast<int64_t>(sequence.tokens.size());
    if (count > context_.model.context_length) {
      return InvalidField(
          "tokens",
          absl::StrCat(count, " tokens, the context length is ", context_.model.context_length),
          "context_length_exceeded");
    }
    const int64_t last = request().logits_last();
    sequence.logits_from = last == 0 ? 0 : std::max<int64_t>(0, count - last);
    if (request().decode_from() > 0) sequence.decode_from = request().decode_from();
    WL_ASSIGN_OR_RETURN(const uint64_t id, context_.engine.Submit(std::move(sequence)));
    sequence_id_ = id;
    if (cancelled_) context_.engine.Cancel(id, patience().WhyEnded());
    return absl::OkStatus();
  }

  const ServiceContext& context_;
  StreamWriter<v1::EvaluateResponse> writer_{
      [this](const v1::EvaluateResponse& response) {
        written_bytes_ = static_cast<int64_t>(response.values().size());
        StartWrite(&response);
      },
      [this](const absl::Status& status) { Finish(ToGrpc(status)); }};
  std::atomic<int64_t> written_bytes_{0};  // of the write in flight
  std::atomic<int64_t> waiting_bytes_{0};
  std::atomic<bool> cancelled_{false};
  std::atomic<uint64_t> sequence_id_{0};

  // The engine's.
  std::deque<v1::EvaluateResponse> waiting_;  // for Flush
  std::optional<absl::Status> end_;
};

}  // namespace

grpc::ServerBidiReactor<v1::EvaluateRequest, v1::EvaluateResponse>* StartEvaluate(
    const ServiceContext& context, grpc::CallbackServerContext& call) {
  auto reactor = std::make_shared<EvaluateCall>(context, call);
  reactor->Start();
  return reactor.get();
}

}  // namespace warpline
