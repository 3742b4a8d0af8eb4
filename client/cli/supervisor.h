// Starts, watches and restarts the processes of a service on one machine: one thread, no gRPC.
// Children tell of themselves over NOTIFY_SOCKET, as to systemd.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "client/cli/child_process.h"

namespace warpline {

struct ChildSpec {
  std::string name;                      // "worker 0"
  std::vector<std::string> arguments;    // the program first
  std::vector<std::string> environment;  // "NAME=value" beside what is inherited
  bool needed_at_start = false;          // its failure before it was ever ready ends the service
  int stop_rank = 0;  // children of the lowest rank are stopped first, and waited for
  int most_stop_seconds = std::numeric_limits<int>::max();  // where that is less than the grace
};

class Supervisor {
 public:
  // `folder` is private to this service and holds the notify socket.
  static absl::StatusOr<Supervisor> Create(const std::string& folder, std::vector<ChildSpec> specs);
  Supervisor(Supervisor&&) = default;

  // Runs until SIGTERM or SIGINT, until `watch_fd` (-1: none) closes, or until the service cannot
  // start; then stops all children, giving each rank `grace_seconds` (a second signal kills them at
  // once). Returns the exit code: 0 after a signal.
  int Run(int watch_fd, int grace_seconds);

 private:
  struct Child {
    ChildSpec spec;
    ChildProcess process;
    bool ready = false;
    bool was_ready = false;
    int failures = 0;  // ends before ready, in a row
    SteadyTime restart_at;
    std::string status = "starting";
  };

  Supervisor(NotifySocket notify, WatchPipe watch, std::vector<Child> children)
      : notify_(std::move(notify)), watch_(std::move(watch)), children_(std::move(children)) {}
  // A value >= 0: the service cannot start, exit code.
  int StartWhatIsDue();
  int MillisecondsUntilNextStart() const;
  void ReadNotifications();
  void ReportStatus();
  // Takes note of the child's end. A value >= 0: the service cannot start, exit code.
  int HandleEnd(Child& child);
  void StopAll(int signal_fd, int grace_seconds);
  // Gives the children of `rank` until `grace_seconds` have passed or `at_once` is set, which a
  // signal does for good.
  void StopRank(int rank, int signal_fd, int grace_seconds, bool& at_once);

  NotifySocket notify_;
  WatchPipe watch_;
  std::vector<Child> children_;
  bool announced_ready_ = false;
  std::string last_status_;
};

}  // namespace warpline
