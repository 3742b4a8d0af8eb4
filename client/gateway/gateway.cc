#include "client/gateway/gateway.h"

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/process.h"

namespace warpline {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr Milliseconds kAcceptPause{100};
constexpr Milliseconds kReadyPause{100};
constexpr std::chrono::seconds kNotifyInterval{10};
constexpr Milliseconds kDrainCheck{20};
// For the error events of requests that outlived the drain limit.
constexpr Milliseconds kEndingTime{1000};

// Another process must not share the port, but a port whose last connections have just ended may be
// taken again at once.
ErrorCode Open(tcp::acceptor& acceptor, const tcp::endpoint& endpoint) {
  ErrorCode error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    ErrorCode ignored;
    acceptor.close(ignored);
  }
  return error;
}

absl::StatusOr<tcp::acceptor> Listen(asio::io_context& io, const GatewayConfig& config) {
  const auto failure = [&config](absl::string_view reason) {
    return absl::FailedPreconditionError(absl::StrCat("cannot listen on address ", config.host,
                                                      " port ", config.port, ": ", reason));
  };
  ErrorCode error;
  tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(config.host, std::to_string(config.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) return failure(error.message());
  tcp::acceptor acceptor(io);
  // IPv4 first, so that a name such as localhost means what most clients try.
  for (const bool want_v4 : {true, false}) {
    for (const auto& entry : found) {
      if (entry.endpoint().address().is_v4() != want_v4) continue;
      error = Open(acceptor, entry.endpoint());
      if (!error) return acceptor;
      if (error == asio::error::address_in_use) return failure("the port is in use");
    }
  }
  return failure(error.message());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gateway>> Gateway::Create(const GatewayConfig& config) {
  auto io = std::make_unique<asio::io_context>(1);
  absl::StatusOr<tcp::acceptor> acceptor = Listen(*io, config);
  if (!acceptor.ok()) return acceptor.status();
  return std::unique_ptr<Gateway>(new Gateway(config, std::move(io), std::move(*acceptor)));
}

Gateway::Gateway(const GatewayConfig& config, std::unique_ptr<asio::io_context> io,
                 Acceptor acceptor)
    : config_(config),
      io_(std::move(io)),
      acceptor_(std::move(acceptor)),
      accept_timer_(*io_),
      ready_timer_(*io_),
      drain_timer_(*io_),
      table_(metrics_),
      client_(io_->get_executor(), config_.coordinator),
      api_(config_, client_, metrics_) {
  ErrorCode ignored;
  const tcp::endpoint endpoint = acceptor_.local_endpoint(ignored);
  address_ = endpoint.address().to_string();
  port_ = endpoint.port();
}

void Gateway::Run() {
  Accept();
  AwaitReady();
  io_->run();
}

void Gateway::Accept() {
  acceptor_.async_accept([this](const ErrorCode& error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    OnAccepted(error, std::move(socket));
  });
}

void Gateway::OnAccepted(const ErrorCode& error, tcp::socket socket) {
  if (error) return OnAcceptError(error);
  accept_failing_ = false;
  ErrorCode ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  if (table_.size() >= static_cast<size_t>(config_.max_connections) && !table_.CloseOldestIdle()) {
    metrics_.refused_connections.Increment();
    const HttpResponse response = ErrorResponse(503, "too many connections", "unavailable");
    socket.non_blocking(true, ignored);
    asio::write(socket, asio::buffer(Serialize(response, {}, {.keep_alive = false})), ignored);
    socket.shutdown(tcp::socket::shutdown_send, ignored);
  } else {
    std::make_shared<Session>(std::move(socket), api_, table_)->Start();
  }
  Accept();
}

// Most likely descriptors have run out: those of an idle client are given to the next one.
void Gateway::OnAcceptError(const ErrorCode& error) {
  metrics_.accept_errors.Increment();
  if (!std::exchange(accept_failing_, true)) {
    LogWarning("cannot accept connections, trying on: ", error.message());
  }
  table_.CloseOldestIdle();
  accept_timer_.expires_after(kAcceptPause);
  accept_timer_.async_wait([this](const ErrorCode& stopped) {
    if (!stopped) Accept();
  });
}

// The answer comes over the channel that requests take: a coordinator that says itself that it is
// ready may still be out of reach, until gRPC dials again.
void Gateway::AwaitReady() {
  api_.AskReady([this](bool ready) {
    if (table_.draining()) return;
    if (ready) return NotifySupervisor("READY=1\nSTATUS=serving");
    if (Now() >= notify_again_at_) {
      // However long the coordinator takes: each call buys a minute.
      NotifySupervisor("EXTEND_TIMEOUT_USEC=60000000\nSTATUS=waiting for the coordinator");
      notify_again_at_ = Now() + kNotifyInterval;
    }
    ready_timer_.expires_after(kReadyPause);
    ready_timer_.async_wait([this](const ErrorCode& stopped) {
      if (!stopped) AwaitReady();
    });
  });
}

void Gateway::Drain() {
  asio::post(*io_, [this] { StartDraining(); });
}

void Gateway::StartDraining() {
  if (table_.draining()) return;
  LogInfo("draining connections=", table_.size());
  table_.StartDraining();
  ready_timer_.cancel();
  drain_deadline_ = Now() + std::chrono::seconds(config_.drain_seconds);
  WatchDraining();
}

// Meanwhile connections are accepted and told 503: better than a refused connection.
void Gateway::WatchDraining() {
  if (table_.AllIdle()) return Finish();
  if (Now() >= drain_deadline_) {
    if (std::exchange(ended_all_, true)) return Finish();
    drain_deadline_ = Now() + kEndingTime;
    table_.ForEach([](Session& session) {
      session.End(absl::UnavailableError("the server is shutting down"));
    });
  }
  drain_timer_.expires_after(kDrainCheck);
  drain_timer_.async_wait([this](const ErrorCode& stopped) {
    if (!stopped) WatchDraining();
  });
}

void Gateway::Finish() {
  ErrorCode ignored;
  acceptor_.close(ignored);
  accept_timer_.cancel();
  table_.ForEach([](Session& session) { session.Close(); });
}

}  // namespace warpline
