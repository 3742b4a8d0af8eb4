#include "client/cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

extern char** environ;

namespace warpline {
namespace {

constexpr int kWatchFd = 3;  // In the children.

absl::Status ErrnoStatus(absl::string_view what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

std::vector<std::string> ChildEnvironment(std::vector<std::string> variables,
                                          const std::string& notify_path) {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const absl::string_view text(*variable);
    if (absl::StartsWith(text, "WARPLINE_") || absl::StartsWith(text, "NOTIFY_SOCKET=")) continue;
    variables.emplace_back(text);
  }
  variables.push_back(absl::StrCat("NOTIFY_SOCKET=", notify_path));
  return variables;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<WatchPipe> WatchPipe::Create() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe");
  return WatchPipe{.read = UniqueFd(ends[0]), .write = UniqueFd(ends[1])};
}

absl::StatusOr<NotifySocket> NotifySocket::Create(const std::string& folder) {
  sockaddr_un address{.sun_family = AF_UNIX};
  const std::string path = absl::StrCat(folder, "/notify.sock");
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", path, " is longer than ",
                                                   sizeof(address.sun_path) - 1, " bytes"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd notify(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!notify.valid()) return ErrnoStatus("notify socket");
  const auto* const name = reinterpret_cast<const sockaddr*>(&address);
  if (connect(notify.get(), name, sizeof(address)) != 0 && errno == ECONNREFUSED) {
    unlink(path.c_str());  // Nobody reads it any more.
  }
  const int on = 1;
  if (bind(notify.get(), name, sizeof(address)) != 0 ||
      setsockopt(notify.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
    return ErrnoStatus(absl::StrCat("notify socket ", path));
  }
  return NotifySocket(std::move(notify), path);
}

NotifySocket::~NotifySocket() {
  if (socket_.valid()) unlink(path_.c_str());
}

void NotifySocket::Read(const std::function<void(pid_t, absl::string_view)>& on_line) const {
  char text[4096];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
  for (;;) {
    iovec buffer{.iov_base = text, .iov_len = sizeof(text)};
    msghdr message{.msg_iov = &buffer,
                   .msg_iovlen = 1,
                   .msg_control = control,
                   .msg_controllen = sizeof(control)};
    const ssize_t size = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0) return;
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_CREDENTIALS) continue;
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(header), sizeof(sender));
    for (absl::string_view line :
         absl::StrSplit(absl::string_view(text, static_cast<size_t>(size)), '\n')) {
      on_line(sender.pid, line);
    }
  }
}

absl::StatusOr<ChildProcess> ChildProcess::Start(std::vector<std::string> arguments,
                                                 const std::vector<std::string>& environment,
                                                 const WatchPipe& watch,
                                                 const std::string& notify_path) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, watch.read.get(), kWatchFd);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  arguments.push_back(absl::StrCat("--watch-fd=", kWatchFd));
  std::vector<std::string> variables = ChildEnvironment(environment, notify_path);
  ChildProcess child;
  const int error = posix_spawn(&child.pid_, arguments[0].c_str(), &actions, &attributes,
                                Pointers(arguments).data(), Pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return absl::InternalError(
        absl::StrCat("cannot start ", arguments[0], ": ", std::strerror(error)));
  }
  child.pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, child.pid_, 0)));
  if (!child.pidfd_.valid()) {  // Descriptors have run out; unwatched it must not run.
    const absl::Status status = ErrnoStatus("pidfd_open");
    kill(child.pid_, SIGKILL);
    waitpid(child.pid_, nullptr, 0);
    return status;
  }
  return child;
}

void ChildProcess::Signal(int number) const {
  if (running()) syscall(SYS_pidfd_send_signal, pidfd_.get(), number, nullptr, 0);
}

bool ChildProcess::WaitForEnd(SteadyTime deadline) {
  if (!running()) return true;
  pollfd ended{.fd = pidfd_.get(), .events = POLLIN};
  int count = 0;
  do {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Now()).count();
    count = poll(&ended, 1, static_cast<int>(std::max<int64_t>(left, 0)));
  } while (count < 0 && errno == EINTR);
  if (count != 1) return false;
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED);
  exit_code_ = info.si_code == CLD_EXITED ? info.si_status : -1;
  signal_ = info.si_code == CLD_EXITED ? 0 : info.si_status;
  pid_ = -1;
  pidfd_.Reset();
  return true;
}

std::string ChildProcess::EndText() const {
  return signal_ != 0 ? absl::StrCat("signal=", signal_) : absl::StrCat("code=", exit_code_);
}

}  // namespace warpline
