// A whole gateway: listens, accepts, drains.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>

#include "absl/status/statusor.h"
#include "client/gateway/api.h"
#include "client/gateway/config.h"
#include "client/gateway/connection_table.h"
#include "client/gateway/gateway_metrics.h"
#include "client/gateway/inference_client.h"

namespace warpline {

// One thread runs it, which makes its io_context the strand of every session.
class Gateway {
 public:
  // Binds and listens. Errors name address and port.
  static absl::StatusOr<std::unique_ptr<Gateway>> Create(const GatewayConfig& config);

  const std::string& address() const { return address_; }
  int port() const { return port_; }
  // Serves until the gateway has drained. Tells the supervisor READY once the coordinator takes
  // requests.
  void Run();
  // From any thread: refuses new requests with 503, lets running ones finish for at most
  // `drain_seconds`, then ends them with an error; Run returns.
  void Drain();

 private:
  using Acceptor = boost::asio::ip::tcp::acceptor;

  Gateway(const GatewayConfig& config, std::unique_ptr<boost::asio::io_context> io,
          Acceptor acceptor);

  void Accept();
  void OnAccepted(const boost::system::error_code& error, boost::asio::ip::tcp::socket socket);
  void OnAcceptError(const boost::system::error_code& error);
  void AwaitReady();
  void StartDraining();
  void WatchDraining();
  void Finish();

  const GatewayConfig config_;
  const std::unique_ptr<boost::asio::io_context> io_;
  Acceptor acceptor_;
  std::string address_;
  int port_ = 0;
  boost::asio::steady_timer accept_timer_;
  boost::asio::steady_timer ready_timer_;
  boost::asio::steady_timer drain_timer_;
  SteadyTime notify_again_at_;  // while not ready
  SteadyTime drain_deadline_;
  bool ended_all_ = false;       // running requests were told to end
  bool accept_failing_ = false;  // said once
  GatewayMetrics metrics_;
  ConnectionTable table_;
  InferenceClient client_;
  Api api_;
};

}  // namespace warpline
