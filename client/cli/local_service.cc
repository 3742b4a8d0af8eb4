#include "client/cli/local_service.h"

#include <poll.h>

#include <csignal>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/flags.h"
#include "base/process.h"
#include "base/status.h"
#include "client/cli/program_path.h"

namespace warpline {

absl::StatusOr<std::unique_ptr<LocalService>> LocalService::Start(ServiceOptions options,
                                                                  const std::string& log_level) {
  WL_ASSIGN_OR_RETURN(SocketFolder folder, SocketFolder::Create(""));
  const std::string socket_dir = absl::StrCat(folder.path(), "/service");
  WL_RETURN_IF_ERROR(CheckSocketPaths(socket_dir));
  WL_ASSIGN_OR_RETURN(NotifySocket notify, NotifySocket::Create(folder.path()));
  WL_ASSIGN_OR_RETURN(WatchPipe watch, WatchPipe::Create());
  options.socket_dir = socket_dir;
  std::vector<std::string> arguments = ServeArguments(options);
  arguments.insert(arguments.begin(), ProgramPath("warpline"));
  arguments.push_back(absl::StrCat("--log-level=", log_level));
  std::unique_ptr<LocalService> service(new LocalService(
      std::move(folder), std::move(notify), std::move(watch), 3 * (options.drain_seconds + 5)));
  service->coordinator_address_ = absl::StrCat("unix:", options.socket_dir, "/coordinator.sock");
  WL_ASSIGN_OR_RETURN(service->process_,
                      ChildProcess::Start(arguments, SecretVariables(options), service->watch_,
                                          service->notify_.path()));
  return service;
}

LocalService::LocalService(SocketFolder folder, NotifySocket notify, WatchPipe watch,
                           int grace_seconds)
    : folder_(std::move(folder)),
      notify_(std::move(notify)),
      watch_(std::move(watch)),
      grace_seconds_(grace_seconds) {}

LocalService::~LocalService() {
  process_.Signal(SIGTERM);
  if (process_.WaitForEnd(Now() + std::chrono::seconds(grace_seconds_))) return;
  process_.Signal(SIGKILL);
  process_.WaitForEnd(Now() + std::chrono::seconds(5));
}

int LocalService::WaitUntilReady(const std::function<void(absl::string_view)>& on_status) {
  const UniqueFd signal_fd = OpenStopSignals();
  bool ready = false;
  while (!ready) {
    pollfd fds[] = {{.fd = signal_fd.get(), .events = POLLIN},
                    {.fd = notify_.fd(), .events = POLLIN},
                    {.fd = process_.pidfd(), .events = POLLIN}};
    if (poll(fds, 3, -1) < 0) continue;  // Interrupted: look again.
    notify_.Read([this, &ready, &on_status](pid_t sender, absl::string_view line) {
      if (sender != process_.pid()) return;
      if (absl::ConsumePrefix(&line, "STATUS=")) on_status(line);
      ready |= line == "READY=1";
    });
    if (ready) break;
    if (fds[0].revents != 0) return kExitFailure;
    if (fds[2].revents != 0) {
      process_.WaitForEnd(Now() + std::chrono::seconds(1));
      std::cerr << "warpline: the service ended before it was ready (" << process_.EndText() << ")"
                << std::endl;
      return process_.exit_code() > 0 ? process_.exit_code() : kExitFailure;
    }
  }
  return -1;
}

}  // namespace warpline
