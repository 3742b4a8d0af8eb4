// The start of a call that brings one request and takes a stream of answers.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>

#include "absl/status/status.h"
#include "base/clock.h"
#include "coordinator/client_patience.h"
#include "proto/deadline.h"

namespace warpline {

// gRPC shows a server-streaming call to its service only when the request has come, so one that is
// opened and never written could not be ended. To the client this is the same; here the call is one
// of both directions (see InferenceService), whose only message is read by hand and within a time.
// Keeps itself alive until gRPC is done with it; others may hold it longer.
template <typename Request, typename Response>
class OneRequestReactor
    : public grpc::ServerBidiReactor<Request, Response>,
      public std::enable_shared_from_this<OneRequestReactor<Request, Response>> {
 public:
  // `limit` holds for a call whose client has set no deadline.
  OneRequestReactor(const grpc::CallbackServerContext& call, std::chrono::seconds limit)
      : limit_(limit),
        has_deadline_(!IsNoDeadline(call.raw_deadline())),
        patience_(has_deadline_ ? SteadyDeadline(call.raw_deadline()) : Now() + limit) {}

  void Start() {
    self_ = this->shared_from_this();
    OnExpiry(request_alarm_, std::min(kRequestLimit, limit_), [](OneRequestReactor& call) {
      call.Begin(absl::DeadlineExceededError("no request came in time"));
    });
    if (!has_deadline_) {
      OnExpiry(limit_alarm_, limit_, [](OneRequestReactor& call) { call.OnCancel(); });
    }
    this->StartRead(&request_);
  }

  void OnReadDone(bool ok) final {
    request_alarm_.Cancel();
    Begin(
        ok ? absl::OkStatus()
           : absl::InvalidArgumentError("the call ended without a request, or with a broken one"));
  }
  void OnDone() final {
    request_alarm_.Cancel();
    limit_alarm_.Cancel();
    const std::shared_ptr<OneRequestReactor> last = std::move(self_);
  }
  // Also when the time of a call without a deadline is over.
  void OnCancel() override = 0;

 protected:
  // Called once: the request is there, or `status` says why there is none. Finishes the call then.
  virtual void OnRequest(const absl::Status& status) = 0;

  const Request& request() const { return request_; }
  const ClientPatience& patience() const { return patience_; }

 private:
  // Enough for the longest message over a slow line.
  static constexpr std::chrono::seconds kRequestLimit{60};

  template <typename Action>
  void OnExpiry(grpc::Alarm& alarm, std::chrono::seconds wait, Action action) {
    alarm.Set(DeadlineIn(wait), [weak = this->weak_from_this(), action](bool expired) {
      const std::shared_ptr<OneRequestReactor> self = weak.lock();
      if (expired && self != nullptr) action(*self);
    });
  }

  void Begin(const absl::Status& status) {
    if (!begun_.exchange(true)) OnRequest(status);
  }

  const std::chrono::seconds limit_;
  const bool has_deadline_;
  const ClientPatience patience_;
  Request request_;
  std::atomic<bool> begun_{false};
  grpc::Alarm request_alarm_;
  grpc::Alarm limit_alarm_;
  std::shared_ptr<OneRequestReactor> self_;  // gRPC's share.
};

}  // namespace warpline
