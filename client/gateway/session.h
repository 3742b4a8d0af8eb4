// One client connection: reads requests, has them answered, keeps the order.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"
#include "client/gateway/config.h"
#include "client/gateway/connection_table.h"
#include "client/gateway/http_response.h"
#include "client/gateway/socket_writer.h"

namespace warpline {

class Api;
struct RouteInfo;

// What a request that is being worked on wants to hear. Any of them may be empty.
struct ExchangeHooks {
  std::function<void()> on_abort;                   // the client is gone: stop the work
  std::function<void(const absl::Status&)> on_end;  // answer with this error now
  std::function<void()> on_quiet;                   // nothing was sent for the comment interval
};

// Owned by its pending operations and by calls that work for it; touched on its executor only. It
// ends when the client leaves, a deadline passes, or the last answer closes it.
class Session : public std::enable_shared_from_this<Session> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  Session(Socket socket, Api& api, ConnectionTable& table);
  ~Session();

  void Start();
  // Waits for the first byte of a request.
  bool idle() const { return state_ == State::kHead && inbox_.empty(); }
  SteadyTime idle_since() const { return idle_since_; }
  // Ends a running request with `status`, otherwise closes.
  void End(const absl::Status& status);
  void Close();

  // For the exchange, the request that is being worked on. All are ignored when the client is gone.
  void SetHooks(ExchangeHooks hooks);
  void Reply(const HttpResponse& response);
  // Server-sent events; the first ones send the header before them.
  void SendEvents(absl::string_view events);
  bool streaming() const { return streaming_; }
  void EndStream(bool failed);

 private:
  enum class State { kHead, kBody, kHandling, kReplying, kLinger, kClosed };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using Step = void (Session::*)();

  void ArmTimer(Milliseconds after, Step on_expiry);
  void DisarmTimer();
  void StartRead();
  void OnRead(const boost::system::error_code& error, size_t count);
  void ContinueHead();
  void ParseHead();
  bool AcceptHead();
  void ContinueBody();
  void RefuseBytes(const boost::system::error_code& error);
  void Dispatch();
  void ProbePeer();
  void OnHeadTimeout();
  void OnBodyTimeout();
  void OnQuietTime();
  void OnReplyStall();
  void OnDrained();
  void Write(absl::string_view bytes);
  void NextRequest();
  void Linger();
  void Abort();

  const GatewayConfig& config_;
  Api& api_;
  ConnectionTable& table_;
  Socket socket_;
  boost::asio::steady_timer timer_;
  uint64_t timer_id_ = 0;  // tells an expiry that was overtaken
  SocketWriter writer_;

  State state_ = State::kHead;
  std::array<char, 16 << 10> chunk_;
  std::string inbox_;  // bytes that arrived and are not parsed yet
  bool reading_ = false;
  bool peer_closed_ = false;  // the client has closed its sending side
  bool watching_error_ = false;
  bool first_byte_seen_ = false;
  SteadyTime idle_since_ = Now();

  std::optional<Parser> parser_;
  const RouteInfo* route_ = nullptr;  // null: no such route
  bool keep_alive_ = true;
  bool head_only_ = false;
  bool chunked_ = true;
  bool prefix_sent_ = false;  // kAnswerPrefix is out already
  bool streaming_ = false;
  bool closing_ = false;  // after the answer
  SteadyTime last_sent_ = Now();
  ExchangeHooks hooks_;
};

}  // namespace warpline
