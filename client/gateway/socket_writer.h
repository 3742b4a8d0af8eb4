// The sending side of a connection: bytes in order, one write in flight, the rest collected.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace warpline {

// Used on the executor of its socket. `owner` is kept alive while a write is in flight.
class SocketWriter {
 public:
  struct Callbacks {
    std::function<void()> on_drained;  // everything was handed to the system
    std::function<void()> on_error;    // the client is gone
  };
  SocketWriter(boost::asio::ip::tcp::socket& socket, Callbacks callbacks)
      : socket_(socket), callbacks_(std::move(callbacks)) {}

  void Write(absl::string_view bytes, const std::shared_ptr<void>& owner);
  // Bytes that the system has not taken yet.
  size_t pending_bytes() const { return waiting_.size() + in_flight_.size() - sent_; }
  // When bytes were last taken, or when the first of the pending ones came.
  SteadyTime last_progress() const { return last_progress_; }

 private:
  void SendSome(std::shared_ptr<void> owner);

  boost::asio::ip::tcp::socket& socket_;
  const Callbacks callbacks_;
  std::string waiting_;
  std::string in_flight_;
  size_t sent_ = 0;  // of in_flight_
  SteadyTime last_progress_ = Now();
};

}  // namespace warpline
