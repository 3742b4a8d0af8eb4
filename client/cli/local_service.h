// A service that a command starts for itself: `warpline serve` as a child, ended with this object
// or this process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/child_process.h"
#include "client/cli/service_options.h"
#include "client/cli/socket_folder.h"

namespace warpline {

class LocalService {
 public:
  static absl::StatusOr<std::unique_ptr<LocalService>> Start(ServiceOptions options,
                                                             const std::string& log_level);
  ~LocalService();

  // Waits until the service is ready; calls `on_status` with lines such as "worker 0: loading 40
  // %". -1 when it is ready, otherwise the exit code the command should end with (the service or
  // its start failed, or a signal came).
  int WaitUntilReady(const std::function<void(absl::string_view)>& on_status);
  const std::string& coordinator_address() const { return coordinator_address_; }

 private:
  LocalService(SocketFolder folder, NotifySocket notify, WatchPipe watch, int grace_seconds);
  SocketFolder folder_;
  NotifySocket notify_;
  WatchPipe watch_;
  int grace_seconds_;
  ChildProcess process_;
  std::string coordinator_address_;
};

}  // namespace warpline
