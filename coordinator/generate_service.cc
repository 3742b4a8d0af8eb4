// Generate: from the request to its tokens, its text and its end.
#include <atomic>
#include <deque>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/inference_service.h"
#include "coordinator/one_request_reactor.h"
#include "coordinator/request_checks.h"
#include "coordinator/text_stream.h"
#include "proto/grpc_status.h"
#include "proto/stream_writer.h"

namespace warpline {
namespace {

// Answers that wait because the client does not read on; beyond it the stream is given up.
constexpr size_t kMaxWaitingAnswers = 4096;
constexpr auto kProgressInterval = std::chrono::seconds(1);

// One call. gRPC, the tokenizer pool and the engine share it; it lives until gRPC is done with it
// and nobody else holds it.
class GenerateCall final : public OneRequestReactor<v1::GenerateRequest, v1::GenerateResponse>,
                           public SequenceSink {
 public:
  GenerateCall(const ServiceContext& context, grpc::CallbackServerContext& call)
      : OneRequestReactor(call, context.request_limit), context_(context), call_(call) {}

  // gRPC's threads.
  void OnWriteDone(bool ok) override { writer_.WriteDone(ok); }
  void OnCancel() override {
    cancelled_ = true;
    if (const uint64_t id = sequence_id_; id != 0)
      context_.engine.Cancel(id, patience().WhyEnded());
  }

  // SequenceSink: the engine's thread.
  void OnAccepted() override {
    v1::Started& started = *waiting_.emplace_back().mutable_started();
    started.set_prompt_tokens(prompt_count_);
    started.set_seed(sampling_.seed());
    started.set_created(UnixSeconds());
    progress_at_ = Now();
  }

  void OnPromptProgress(int64_t prompt_done) override {
    if (prompt_done >= prompt_count_ || Now() < progress_at_ + kProgressInterval) return;
    progress_at_ = Now();
    v1::Progress& progress = *waiting_.emplace_back().mutable_progress();
    progress.set_prompt_done(prompt_done);
    progress.set_prompt_tokens(prompt_count_);
  }

  Verdict OnToken(int32_t token_id) override {
    if (writer_.size() >= kMaxWaitingAnswers) return Verdict::kSlowReader;
    ++completion_count_;
    v1::Delta& delta = *waiting_.emplace_back().mutable_delta();
    delta.add_token_ids(token_id);
    if (!request().ignore_eos() && context_.model.tokenizer->IsEndOfGeneration(token_id)) {
      return Verdict::kStop;
    }
    TextStream::Piece piece = text_->Push(token_id);
    delta.set_text(std::move(piece.text));
    return piece.stopped ? Verdict::kStop : Verdict::kContinue;
  }

  void OnFinished(const absl::Status& status, FinishKind kind) override {
    end_ = status;
    if (status.ok()) {
      v1::Finished& finished = *waiting_.emplace_back().mutable_finished();
      finished.set_reason(kind == FinishKind::kStop ? v1::FINISH_REASON_STOP
                                                    : v1::FINISH_REASON_LENGTH);
      finished.set_text(text_->Finish());
      finished.mutable_usage()->set_prompt_tokens(prompt_count_);
      finished.mutable_usage()->set_completion_tokens(completion_count_);
    } else if (writer_.size() >= kMaxWaitingAnswers) {
      call_.TryCancel();  // What waits would keep the stream open for as long as nobody reads.
    }
  }

  void Flush() override {
    for (v1::GenerateResponse& response : waiting_) writer_.Send(std::move(response));
    waiting_.clear();
    if (end_.has_value()) writer_.Finish(*end_, /*drain=*/true);
  }

 private:
  void OnRequest(const absl::Status& status) override {
    if (!status.ok()) return Refuse(status);
    if (const absl::Status prepared = Prepare(); !prepared.ok()) return Refuse(prepared);
    // Token ids need no tokenizer, so they do not wait for its threads.
    if (request().has_tokens()) return Submit();
    const absl::Status queued = context_.pool.Run([call = Shared()] { call->Submit(); });
    if (!queued.ok()) Refuse(queued);
  }

  std::shared_ptr<GenerateCall> Shared() {
    return std::static_pointer_cast<GenerateCall>(shared_from_this());
  }

  // Checks what needs no tokenizer.
  absl::Status Prepare() {
    WL_ASSIGN_OR_RETURN(sampling_, CheckSampling(request().sampling(), context_.model.vocab_size,
                                                 context_.model.tokenizer->suppressed_ids()));
    WL_ASSIGN_OR_RETURN(const std::vector<std::string> stops, CheckStops(request()));
    text_.emplace(*context_.model.tokenizer, stops);
    return absl::OkStatus();
  }

  void Submit() {
    if (cancelled_) return Refuse(patience().WhyEnded());
    if (const absl::Status status = TrySubmit(); !status.ok()) Refuse(status);
  }

  absl::Status TrySubmit() {
    SequenceRequest sequence{.sampling = sampling_, .sink = Shared()};
    WL_ASSIGN_OR_RETURN(sequence.tokens, PromptTokens(context_.model, request()));
    prompt_count_ = static_cast<int64_t>(sequence.tokens.size());
    WL_ASSIGN_OR_RETURN(sequence.max_tokens,
                        CheckLength(request(), prompt_count_, context_.model.context_length));
    WL_ASSIGN_OR_RETURN(const uint64_t id, context_.engine.Submit(std::move(sequence)));
    LogDebug("sequence=", id, " request=", request().request_id(), " prompt=", prompt_count_);
    sequence_id_ = id;
    // The client may have left before the id was known to OnCancel.
    if (cancelled_) context_.engine.Cancel(id, patience().WhyEnded());
    return absl::OkStatus();
  }

  // Ends the call before the engine has it.
  void Refuse(const absl::Status& status) {
    context_.metrics.CountRequest(status);
    writer_.Finish(status, /*drain=*/true);
  }

  const ServiceContext& context_;
  grpc::CallbackServerContext& call_;
  StreamWriter<v1::GenerateResponse> writer_{
      [this](const v1::GenerateResponse& response) { StartWrite(&response); },
      [this](const absl::Status& status) { Finish(ToGrpc(status)); }};
  std::atomic<bool> cancelled_{false};
  std::atomic<uint64_t> sequence_id_{0};  // 0: the engine does not have it yet

  // Set before Submit, the engine's from then on.
  v1::Sampling sampling_;
  std::optional<TextStream> text_;
  int64_t prompt_count_ = 0;
  uint32_t completion_count_ = 0;
  SteadyTime progress_at_;
  std::deque<v1::GenerateResponse> waiting_;  // for Flush
  std::optional<absl::Status> end_;
};

}  // namespace

grpc::ServerBidiReactor<v1::GenerateRequest, v1::GenerateResponse>* StartGenerate(
    const ServiceContext& context, grpc::CallbackServerContext& call) {
  auto reactor = std::make_shared<GenerateCall>(context, call);
  reactor->Start();
  return reactor.get();
}

}  // namespace warpline
