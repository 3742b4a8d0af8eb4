#include "client/gateway/session.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <utility>

#include "absl/strings/strip.h"
#include "base/log.h"
#include "client/gateway/api.h"
#include "client/gateway/http_head.h"

namespace warpline {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

constexpr size_t kMaxInboxBytes = 64 << 10;  // pipelined bytes, or the head of one chunk
constexpr Milliseconds kLingerTime{2000};

}  // namespace

Session::Session(Socket socket, Api& api, ConnectionTable& table)
    : config_(api.config()),
      api_(api),
      table_(table),
      socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      writer_(socket_, {.on_drained = [this] { OnDrained(); }, .on_error = [this] { Abort(); }}) {
  table_.Add(this);
}

Session::~Session() { table_.Remove(this); }

void Session::Start() {
  ArmTimer(config_.header_timeout, &Session::OnHeadTimeout);
  StartRead();
}

void Session::ArmTimer(Milliseconds after, Step on_expiry) {
  timer_.expires_after(after);
  timer_.async_wait([self = shared_from_this(), on_expiry,
                     id = ++timer_id_](const boost::system::error_code& error) {
    if (!error && id == self->timer_id_) (self.get()->*on_expiry)();
  });
}

void Session::DisarmTimer() {
  ++timer_id_;
  timer_.cancel();
}

void Session::StartRead() {
  if (reading_ || peer_closed_ || state_ == State::kClosed) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(chunk_), [self = shared_from_this()](
                                                    const boost::system::error_code& error,
                                                    size_t count) { self->OnRead(error, count); });
}

void Session::OnRead(const boost::system::error_code& error, size_t count) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  if (error == asio::error::eof) {
    peer_closed_ = true;
  } else if (error) {
    return Abort();
  }
  inbox_.append(chunk_.data(), count);
  switch (state_) {
    case State::kHead:
      return ContinueHead();
    case State::kBody:
      return ContinueBody();
    case State::kHandling:
      // The read that stays pending tells when the client leaves.
      if (peer_closed_) return ProbePeer();
      if (inbox_.size() < kMaxInboxBytes) StartRead();
      return;
    case State::kReplying:
      return;
    case State::kLinger:
      inbox_.clear();
      return peer_closed_ ? Close() : StartRead();
    case State::kClosed:
      return;
  }
}

void Session::ContinueHead() {
  const HeadScan scan = ScanHead(inbox_);
  if (scan.state == HeadScan::State::kRefused) {
    closing_ = true;
    return Reply(ErrorResponse(scan.http_status, scan.message, "bad_request"));
  }
  if (scan.state == HeadScan::State::kIncomplete) {
    if (peer_closed_) return Close();
    if (!inbox_.empty() && !std::exchange(first_byte_seen_, true)) {
      ArmTimer(config_.header_timeout, &Session::OnHeadTimeout);
    }
    return StartRead();
  }
  inbox_.erase(0, scan.skipped);
  ParseHead();
}

void Session::ParseHead() {
  parser_.emplace();
  parser_->header_limit(kMaxHeadBytes);
  parser_->body_limit(config_.max_body_bytes);
  parser_->eager(false);
  boost::system::error_code error;
  const size_t used = parser_->put(asio::buffer(inbox_), error);
  inbox_.erase(0, used);
  head_only_ = parser_->get().method() == http::verb::head;
  if (error || !parser_->is_header_done()) return RefuseBytes(error);
  keep_alive_ = parser_->keep_alive();
  chunked_ = parser_->get().version() >= 11;
  if (!AcceptHead()) return;
  if (parser_->is_done()) return Dispatch();
  state_ = State::kBody;
  parser_->eager(true);
  ArmTimer(config_.body_timeout, &Session::OnBodyTimeout);
  ContinueBody();
}

// Refuses what the header alone shows to be wrong, before a byte of the body is read.
bool Session::AcceptHead() {
  const HeadVerdict verdict = api_.CheckHead(parser_->get().base(), table_.draining());
  route_ = verdict.route;
  if (verdict.refusal.has_value()) {
    if (!parser_->is_done()) closing_ = true;
    Reply(*verdict.refusal);
    return false;
  }
  if (verdict.expects_continue && !parser_->is_done() && chunked_) {
    Write("HTTP/1.1 100 Continue\r\n\r\n");
  }
  return true;
}

void Session::ContinueBody() {
  boost::system::error_code error;
  while (!inbox_.empty() && !parser_->is_done() && !error) {
    const size_t used = parser_->put(asio::buffer(inbox_), error);
    inbox_.erase(0, used);
    if (used == 0) break;
  }
  if (parser_->is_done()) return Dispatch();
  if (error && error != http::error::need_more) return RefuseBytes(error);
  if (peer_closed_) return Close();  // Half a request is none.
  if (inbox_.size() > kMaxInboxBytes) return RefuseBytes(http::error::bad_chunk_extension);
  StartRead();
}

void Session::RefuseBytes(const boost::system::error_code& error) {
  closing_ = true;
  if (error == http::error::body_limit) {
    return Reply(ErrorResponse(
        413, "the body is longer than " + std::to_string(config_.max_body_bytes) + " bytes",
        "request_too_large"));
  }
  if (error == http::error::header_limit) {
    return Reply(ErrorResponse(431, "the header is too long", "bad_request"));
  }
  Reply(ErrorResponse(400, "this is no valid HTTP request: " + error.message(), "bad_request"));
}

void Session::Dispatch() {
  state_ = State::kHandling;
  last_sent_ = Now();
  ArmTimer(config_.comment_interval, &Session::OnQuietTime);
  const std::string target(parser_->get().target());
  std::string body = std::move(parser_->get().body());
  api_.Handle(*route_, target, std::move(body), shared_from_this());
  if (state_ != State::kHandling) return;
  peer_closed_ ? ProbePeer() : StartRead();
}

// The client has closed its sending side: it may still wait for the answer, or be gone for good. A
// system without that connection answers any byte with a reset; and every answer begins alike.
void Session::ProbePeer() {
  if (!std::exchange(watching_error_, true)) {
    socket_.async_wait(Socket::wait_error,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         self->watching_error_ = false;
                         if (!error) self->Abort();
                       });
  }
  if (streaming_) return SendEvents(kKeepAliveComment);
  if (!std::exchange(prefix_sent_, true)) Write(kAnswerPrefix);
}

void Session::OnHeadTimeout() {
  if (inbox_.empty()) return Close();
  closing_ = true;
  Reply(ErrorResponse(408, "the header did not arrive in time", "request_timeout"));
}

void Session::OnBodyTimeout() {
  closing_ = true;
  Reply(ErrorResponse(408, "the body did not arrive in time", "request_timeout"));
}

void Session::OnQuietTime() {
  if (writer_.pending_bytes() > 0 && Now() - writer_.last_progress() > config_.write_timeout) {
    api_.metrics().slow_clients.Increment();
    return Abort();
  }
  const auto quiet = std::chrono::duration_cast<Milliseconds>(Now() - last_sent_);
  Milliseconds rest = config_.comment_interval - quiet;
  if (rest <= Milliseconds::zero()) {
    last_sent_ = Now();
    rest = config_.comment_interval;
    // A copy, since the hook may end the exchange.
    if (const auto on_quiet = hooks_.on_quiet) on_quiet();
    if (state_ != State::kHandling) return;
  }
  ArmTimer(rest, &Session::OnQuietTime);
}

void Session::OnReplyStall() {
  const auto stalled = std::chrono::duration_cast<Milliseconds>(Now() - writer_.last_progress());
  if (stalled < config_.write_timeout) {
    return ArmTimer(config_.write_timeout - stalled, &Session::OnReplyStall);
  }
  api_.metrics().slow_clients.Increment();
  Abort();
}

void Session::SetHooks(ExchangeHooks hooks) {
  if (state_ == State::kHandling) hooks_ = std::move(hooks);
}

void Session::Write(absl::string_view bytes) {
  last_sent_ = Now();
  writer_.Write(bytes, shared_from_this());
}

void Session::Reply(const HttpResponse& response) {
  if (state_ == State::kClosed || state_ == State::kReplying || state_ == State::kLinger) return;
  closing_ = closing_ || response.must_close || !keep_alive_ || table_.draining();
  api_.metrics().CountRequest(RouteName(route_), response.status);
  state_ = State::kReplying;
  ArmTimer(config_.write_timeout, &Session::OnReplyStall);
  const std::string text =
      Serialize(response, api_.common_fields(), {.keep_alive = !closing_, .head_only = head_only_});
  Write(absl::string_view(text).substr(prefix_sent_ ? kAnswerPrefix.size() : 0));
}

void Session::SendEvents(absl::string_view events) {
  if (state_ != State::kHandling || events.empty()) return;
  if (!std::exchange(streaming_, true)) {
    closing_ = closing_ || !keep_alive_ || !chunked_ || table_.draining();
    api_.metrics().CountRequest(RouteName(route_), 200);
    const std::string header = StreamHeader(api_.common_fields(), !closing_, chunked_);
    Write(absl::string_view(header).substr(prefix_sent_ ? kAnswerPrefix.size() : 0));
  }
  chunked_ ? Write(Chunk(events)) : Write(events);
  if (writer_.pending_bytes() > config_.stream_buffer_bytes) {
    api_.metrics().slow_clients.Increment();
    Abort();
  }
}

void Session::EndStream(bool failed) {
  if (state_ != State::kHandling || !streaming_) return;
  closing_ = closing_ || failed || table_.draining();
  state_ = State::kReplying;
  ArmTimer(config_.write_timeout, &Session::OnReplyStall);
  if (chunked_) Write(kLastChunk);
  if (writer_.pending_bytes() == 0) OnDrained();
}

void Session::OnDrained() {
  if (state_ == State::kReplying) NextRequest();
}

void Session::NextRequest() {
  hooks_ = {};
  parser_.reset();
  route_ = nullptr;
  prefix_sent_ = false;
  streaming_ = false;
  head_only_ = false;
  if (closing_) return Linger();
  state_ = State::kHead;
  idle_since_ = Now();
  first_byte_seen_ = !inbox_.empty();
  ArmTimer(inbox_.empty() ? config_.idle_timeout : config_.header_timeout, &Session::OnHeadTimeout);
  ContinueHead();
}

// Waits a moment for the client to close: closing on unread bytes would reset the connection and
// might take the answer with it.
void Session::Linger() {
  boost::system::error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  inbox_.clear();
  if (peer_closed_) return Close();
  state_ = State::kLinger;
  ArmTimer(kLingerTime, &Session::Close);
  StartRead();
}

void Session::End(const absl::Status& status) {
  if (state_ == State::kReplying) return;
  const auto on_end = hooks_.on_end;
  if (state_ == State::kHandling && on_end) return on_end(status);
  Close();
}

void Session::Abort() {
  if (state_ == State::kHandling || state_ == State::kReplying) {
    api_.metrics().aborted_by_client.Increment();
  }
  Close();
}

void Session::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  DisarmTimer();
  boost::system::error_code ignored;
  socket_.close(ignored);
  const ExchangeHooks hooks = std::exchange(hooks_, {});
  if (hooks.on_abort) hooks.on_abort();
}

}  // namespace warpline
