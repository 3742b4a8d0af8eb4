#include "proto/accept_loop.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/status.h"

namespace warpline {
namespace {

constexpr int kPauseMs = 100;

}  // namespace

AcceptLoop::AcceptLoop(std::vector<UniqueFd> listeners,
                       std::function<void(int listener, UniqueFd)> take)
    : listeners_(std::move(listeners)),
      take_(std::move(take)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  WL_CHECK(stop_.valid());
  thread_ = std::thread([this] { Run(); });
}

AcceptLoop::~AcceptLoop() {
  const uint64_t one = 1;
  WL_CHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
}

void AcceptLoop::Run() {
  std::vector<pollfd> fds = {{.fd = stop_.get(), .events = POLLIN}};
  for (const UniqueFd& listener : listeners_) {
    fds.push_back({.fd = listener.get(), .events = POLLIN});
  }
  while (true) {
    // While accepting fails only the stop is waited for, or the loop would spin.
    poll(fds.data(), failing_ ? 1 : fds.size(), failing_ ? kPauseMs : -1);
    if (fds[0].revents != 0) return;
    for (const UniqueFd& listener : listeners_) Accept(listener.get());
  }
}

void AcceptLoop::Accept(int listener) {
  while (true) {
    UniqueFd connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) {
        failing_ = false;
        return;
      }
      if (!std::exchange(failing_, true)) {
        LogWarning("cannot accept connections, trying on: ", std::strerror(errno));
      }
      return;
    }
    failing_ = false;
    const int on = 1;
    setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    take_(listener, std::move(connection));
  }
}

}  // namespace warpline
