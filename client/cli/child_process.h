// Starting a child that dies with us, and hearing from children over a notify socket.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/unique_fd.h"

namespace warpline {

// Two ends of a pipe; children inherit `read`, and see it close when this process ends, however it
// ends.
struct WatchPipe {
  UniqueFd read;
  UniqueFd write;

  static absl::StatusOr<WatchPipe> Create();
};

// The datagram socket that sd_notify of the children writes to.
class NotifySocket {
 public:
  // A socket that a killed process has left there is replaced.
  static absl::StatusOr<NotifySocket> Create(const std::string& folder);
  NotifySocket(NotifySocket&&) = default;
  ~NotifySocket();

  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }
  // Calls `on_line` with the sender and each line ("READY=1") of all that has arrived; does not
  // wait.
  void Read(const std::function<void(pid_t sender, absl::string_view line)>& on_line) const;

 private:
  NotifySocket(UniqueFd socket, std::string path)
      : socket_(std::move(socket)), path_(std::move(path)) {}
  UniqueFd socket_;
  std::string path_;
};

// A child in a process group of its own (a terminal's Ctrl-C must not reach it), without our
// WARPLINE_* variables (they were read here and are passed as flags), with the watch pipe as
// --watch-fd. Named by a pidfd: its number may be reused. `environment` ("NAME=value") carries what
// must not stand in the process list.
class ChildProcess {
 public:
  ChildProcess() = default;
  static absl::StatusOr<ChildProcess> Start(std::vector<std::string> arguments,
                                            const std::vector<std::string>& environment,
                                            const WatchPipe& watch, const std::string& notify_path);

  bool running() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }
  void Signal(int number) const;
  // Waits for the end until `deadline`; true when it has ended and been taken away.
  bool WaitForEnd(SteadyTime deadline);
  // After the end: exit code, or -1 when a signal ended it.
  int exit_code() const { return exit_code_; }
  std::string EndText() const;  // "code=1" or "signal=9"

 private:
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  int exit_code_ = 0;
  int signal_ = 0;
};

}  // namespace warpline
