#include "base/process.h"

#include <poll.h>
#include <pthread.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "base/status.h"

namespace warpline {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// True when a signal came, false when the watched descriptor was closed or the time ran out.
bool WaitForSignal(int watch_fd, int timeout_ms) {
  const UniqueFd signal_fd = OpenStopSignals();
  pollfd fds[] = {{.fd = signal_fd.get(), .events = POLLIN}, {.fd = watch_fd, .events = POLLIN}};
  int count = 0;
  do {
    count = poll(fds, watch_fd >= 0 ? 2 : 1, timeout_ms);
  } while (count < 0 && errno == EINTR);
  return TakeStopSignal(signal_fd.get());
}

// As sd_notify, but waits at most `wait_seconds` for a supervisor that does not read. False when
// the message found no place.
bool Notify(const std::string& text, int wait_seconds) {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un peer{.sun_family = AF_UNIX};
  if (path == nullptr || strlen(path) >= sizeof(peer.sun_path)) return true;
  memcpy(peer.sun_path, path, strlen(path));
  if (peer.sun_path[0] == '@') peer.sun_path[0] = '\0';  // An abstract name.
  const UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return false;
  const timeval limit{.tv_sec = wait_seconds};
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  const socklen_t length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + strlen(path));
  return sendto(fd.get(), text.data(), text.size(),
                MSG_NOSIGNAL | (wait_seconds > 0 ? 0 : MSG_DONTWAIT),
                reinterpret_cast<const sockaddr*>(&peer), length) >= 0;
}

// Called by the C++ runtime when nothing catches an exception, so nothing may be thrown here.
[[noreturn]] void EndReadably() {
  std::string what = "terminated without an exception";
  try {
    if (std::current_exception() != nullptr) throw;
  } catch (const std::bad_alloc&) {
    what = "out of memory";
  } catch (const std::system_error& error) {
    what = error.what();
    if (error.code() == std::errc::resource_unavailable_try_again) {
      what = "cannot start a thread: a limit on threads, processes or memory is reached";
    }
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
    what = "unknown exception";
  }
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what.c_str());
  std::_Exit(1);
}

}  // namespace

void InstallTerminateHandler() { std::set_terminate(EndReadably); }

void BlockSignals() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

void UnblockSignals() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

UniqueFd OpenStopSignals() {
  const sigset_t signals = StopSignals();
  UniqueFd fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  WL_CHECK(fd.valid());
  return fd;
}

bool TakeStopSignal(int stop_signals) {
  signalfd_siginfo info{};
  return read(stop_signals, &info, sizeof(info)) == sizeof(info);
}

StopReason WaitForStop(int watch_fd) {
  return WaitForSignal(watch_fd, -1) ? StopReason::kSignal : StopReason::kParentGone;
}

void ExitOnSecondSignal(int grace_seconds) {
  std::thread([grace_seconds] {
    const bool signalled = WaitForSignal(-1, grace_seconds * 1000);
    LogWarning(signalled ? "second signal, exiting at once"
                         : "stopping took too long, exiting at once");
    std::_Exit(1);
  }).detach();
}

void NotifySupervisor(absl::string_view state) {
  // The queue of a notify socket is short (10 messages on Linux). What the supervisor acts on waits
  // for its place, in a thread of its own, since no caller may; progress and the end of the process
  // are worth no wait.
  constexpr int kMostSeconds = 5;
  const std::string text(state);
  const bool acted_on = text.rfind("READY=1", 0) == 0 || text.rfind("STATUS=serving", 0) == 0;
  if (!Notify(text, 0) && acted_on) std::thread([text] { Notify(text, kMostSeconds); }).detach();
}

}  // namespace warpline
