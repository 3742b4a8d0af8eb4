// warpline-gateway: the REST interface of a coordinator.
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/process.h"
#include "client/gateway/config.h"
#include "client/gateway/gateway.h"
#include "proto/grpc_server.h"

namespace warpline {
namespace {

constexpr rlim_t kOwnDescriptors = 64;

// Each connection is a descriptor; the soft limit is often 1024.
void AllowDescriptors(int connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = static_cast<rlim_t>(connections) + kOwnDescriptors;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted) {
    LogWarning("only ", limit.rlim_cur, " descriptors for ", connections, " connections");
  }
}

void LogStart(const GatewayConfig& config, const Gateway& gateway) {
  if (config.api_keys.empty() && !IsLoopbackHost(config.host)) {
    LogWarning("anybody who reaches address ", config.host,
               " may send requests: no --api-key is set");
  }
  LogInfo("listening address=", gateway.address(), " port=", gateway.port());
}

int Serve(const GatewayConfig& config) {
  AllowDescriptors(config.max_connections);
  if (const absl::Status threads = CheckThreads(1); !threads.ok()) {
    LogError(threads.message());
    return kExitFailure;
  }
  const absl::StatusOr<std::unique_ptr<Gateway>> gateway = Gateway::Create(config);
  if (!gateway.ok()) {
    LogError(gateway.status().message());
    return kExitFailure;
  }
  std::thread server([&gateway] { (*gateway)->Run(); });
  LogStart(config, **gateway);
  if (WaitForStop(config.watch_fd) == StopReason::kParentGone) {
    LogWarning("the parent process is gone, exiting");
    std::_Exit(kExitFailure);
  }
  NotifySupervisor("STOPPING=1");
  // Two seconds for error events, and some for calls to the coordinator that still run.
  ExitOnSecondSignal(config.drain_seconds + 5);
  (*gateway)->Drain();
  server.join();
  return kExitOk;
}

}  // namespace
}  // namespace warpline

int main(int argc, char** argv) {
  warpline::InstallTerminateHandler();
  warpline::BlockSignals();
  int exit_code = warpline::kExitOk;
  const auto config = warpline::ParseGatewayConfig(argc, argv, exit_code);
  return warpline::FinishOutput("warpline-gateway",
                                config.has_value() ? warpline::Serve(*config) : exit_code);
}
