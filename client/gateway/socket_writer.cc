#include "client/gateway/socket_writer.h"

#include <boost/asio/buffer.hpp>
#include <utility>

namespace warpline {

void SocketWriter::Write(absl::string_view bytes, const std::shared_ptr<void>& owner) {
  if (pending_bytes() == 0) last_progress_ = Now();
  waiting_.append(bytes.data(), bytes.size());
  if (in_flight_.empty() && !waiting_.empty()) {
    std::swap(in_flight_, waiting_);
    SendSome(owner);
  }
}

void SocketWriter::SendSome(std::shared_ptr<void> owner) {
  socket_.async_write_some(
      boost::asio::buffer(in_flight_.data() + sent_, in_flight_.size() - sent_),
      [this, owner = std::move(owner)](const boost::system::error_code& error, size_t count) {
        if (error) return callbacks_.on_error();
        last_progress_ = Now();
        sent_ += count;
        if (sent_ == in_flight_.size()) {
          sent_ = 0;
          in_flight_.clear();
          std::swap(in_flight_, waiting_);
        }
        if (in_flight_.empty()) return callbacks_.on_drained();
        SendSome(owner);
      });
}

}  // namespace warpline
