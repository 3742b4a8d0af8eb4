#include "client/gateway/chat_handler.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "client/gateway/http_response.h"

namespace warpline {
namespace {

// One request that is answered. Kept by the callbacks of its calls and the hooks of its session;
// both go when it ends.
class GenerateExchange : public std::enable_shared_from_this<GenerateExchange> {
 public:
  GenerateExchange(const GenerateJob& job, GenerateAnswer::Identity identity,
                   GatewayMetrics& metrics, std::shared_ptr<Session> session)
      : id_(identity.id),
        stream_(job.stream),
        answer_(job, std::move(identity)),
        metrics_(metrics),
        session_(std::move(session)),
        last_token_(job.requests.size()) {}

  void Start(GenerateJob job, InferenceClient& client, Milliseconds timeout) {
    const auto self = shared_from_this();
    session_->SetHooks({.on_abort = [self] { self->StopCalls(); },
                        .on_end = [self](const absl::Status& status) { self->Fail(status); },
                        .on_quiet = [self] { self->KeepAlive(); }});
    for (size_t index = 0; index < job.requests.size(); ++index) {
      GenerateCallbacks callbacks{
          .on_event = [self,
                       index](const v1::GenerateResponse& event) { self->OnEvent(index, event); },
          .on_done = [self](const absl::Status& status) { self->OnDone(status); }};
      cancels_.push_back(
          client.Generate(std::move(job.requests[index]), timeout, std::move(callbacks)));
    }
  }

 private:
  void OnEvent(size_t index, const v1::GenerateResponse& event) {
    std::string events;
    switch (event.event_case()) {
      case v1::GenerateResponse::kStarted:
        answer_.OnStarted(index, event.started());
        return;
      case v1::GenerateResponse::kDelta:
        CountToken(index);
        events = answer_.OnDelta(index, event.delta());
        break;
      case v1::GenerateResponse::kFinished:
        events = answer_.OnFinished(index, event.finished());
        break;
      case v1::GenerateResponse::kProgress:
      case v1::GenerateResponse::EVENT_NOT_SET:
        return;
    }
    if (!events.empty()) session_->SendEvents(events);
  }

  void OnDone(const absl::Status& status) {
    if (!status.ok()) return Fail(status);
    if (++done_count_ < cancels_.size()) return;
    // A stream that ends without its last message must not look like an answer.
    if (!answer_.complete()) return Fail(absl::InternalError("the answer ended too early"));
    if (stream_) {
      session_->SendEvents(answer_.StreamEnd());
      session_->EndStream(/*failed=*/false);
    } else {
      session_->Reply(JsonResponse(answer_.Body()));
    }
  }

  void Fail(const absl::Status& status) {
    if (failed_) return;
    failed_ = true;
    StopCalls();
    if (HttpStatusOf(status) >= 500) {
      LogWarning("request failed id=", id_, " code=", absl::StatusCodeToString(status.code()),
                 " message=", status.message());
    }
    if (session_->streaming()) {
      session_->SendEvents(Event(ErrorBody(status)));
      session_->EndStream(/*failed=*/true);
    } else {
      session_->Reply(ErrorResponse(status));
    }
  }

  void StopCalls() {
    for (const std::function<void()>& cancel : cancels_) cancel();
  }

  void KeepAlive() {
    if (stream_) session_->SendEvents(kKeepAliveComment);
  }

  void CountToken(size_t index) {
    const SteadyTime now = Now();
    const SteadyTime before = std::exchange(last_token_[index], now);
    if (before == SteadyTime()) {
      metrics_.first_token_seconds.Observe(std::chrono::duration<double>(now - begin_).count());
    } else {
      metrics_.inter_token_seconds.Observe(std::chrono::duration<double>(now - before).count());
    }
  }

  const std::string id_;
  const bool stream_;
  GenerateAnswer answer_;
  GatewayMetrics& metrics_;
  const std::shared_ptr<Session> session_;
  const SteadyTime begin_ = Now();
  std::vector<SteadyTime> last_token_;  // of each choice; the epoch before its first
  std::vector<std::function<void()>> cancels_;
  size_t done_count_ = 0;
  bool failed_ = false;
};

}  // namespace

void StartGenerate(GenerateJob job, GenerateAnswer::Identity identity, InferenceClient& client,
                   GatewayMetrics& metrics, Milliseconds timeout,
                   std::shared_ptr<Session> session) {
  const auto exchange =
      std::make_shared<GenerateExchange>(job, std::move(identity), metrics, std::move(session));
  exchange->Start(std::move(job), client, timeout);
}

}  // namespace warpline
