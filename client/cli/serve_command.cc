#include "client/cli/serve_command.h"

#include <algorithm>
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/process.h"
#include "base/status.h"
#include "client/cli/device_memory.h"
#include "client/cli/program_path.h"
#include "client/cli/service_options.h"
#include "client/cli/socket_folder.h"
#include "client/cli/supervisor.h"

namespace warpline {
namespace {

constexpr int kGatewayRank =
    0;  // Stopped first, so that running answers still reach their clients.
constexpr int kCoordinatorRank = 1;
constexpr int kWorkerRank = 2;
// A worker ends itself within two seconds, unless it is stopped or stuck.
constexpr int kWorkerStopSeconds = 5;

void AppendIf(std::vector<std::string>& arguments, const std::string& flag,
              const std::string& value) {
  if (!value.empty()) arguments.insert(arguments.end(), {flag, value});
}

ChildSpec WorkerSpec(const ServiceOptions& options, int index, int threads,
                     const std::string& address, const std::string& log_level) {
  ChildSpec spec{.name = absl::StrCat("worker ", index),
                 .stop_rank = kWorkerRank,
                 .most_stop_seconds = kWorkerStopSeconds};
  spec.arguments = {ProgramPath("warpline-worker"),
                    "--model",
                    options.model,
                    "--listen",
                    address,
                    "--threads",
                    absl::StrCat(threads),
                    "--backend",
                    options.backend,
                    "--device",
                    absl::StrCat(WorkerDevice(options, index)),
                    "--tiles",
                    options.tiles,
                    "--ple-io",
                    options.ple_io,
                    "--ple-cache-mib",
                    absl::StrCat(options.ple_cache_mib),
                    "--ple-timeout-s",
                    absl::StrCat(options.ple_timeout_s),
                    "--log-level",
                    log_level};
  if (options.verify) spec.arguments.push_back("--verify");
  return spec;
}

ChildSpec CoordinatorSpec(const ServiceOptions& options, const std::vector<std::string>& workers,
                          const std::string& address, const std::string& log_level) {
  ChildSpec spec{.name = "coordinator", .needed_at_start = true, .stop_rank = kCoordinatorRank};
  std::string listen = address;
  if (options.grpc_port >= 0) absl::StrAppend(&listen, ",", GrpcAddress(options));
  spec.arguments = {ProgramPath("warpline-coordinator"), "--model", options.model, "--listen",
                    listen};
  for (const std::string& worker : workers)
    spec.arguments.insert(spec.arguments.end(), {"--worker", worker});
  if (options.ctx_size > 0) AppendIf(spec.arguments, "--ctx-size", absl::StrCat(options.ctx_size));
  AppendIf(spec.arguments, "--parallel", absl::StrCat(options.parallel));
  AppendIf(spec.arguments, "--chunk", absl::StrCat(options.chunk));
  AppendIf(spec.arguments, "--layer-split",
           options.layer_split == "auto" ? "" : options.layer_split);
  AppendIf(spec.arguments, "--kv-type", options.kv_type);
  AppendIf(spec.arguments, "--edge", options.edge);
  AppendIf(spec.arguments, "--worker-threads", absl::StrCat(WorkerThreads(options)[0]));
  AppendIf(spec.arguments, "--backend", options.backend);
  AppendIf(spec.arguments, "--device", options.device);
  AppendIf(spec.arguments, "--device-memory", DeviceMemoryList(options));
  AppendIf(spec.arguments, "--ple-io", options.ple_io);
  AppendIf(spec.arguments, "--ple-cache-mib", absl::StrCat(options.ple_cache_mib));
  AppendIf(spec.arguments, "--chat-template", options.chat_template);
  AppendIf(spec.arguments, "--alias", options.alias);
  AppendIf(spec.arguments, "--load-timeout-s", absl::StrCat(options.load_timeout_s));
  AppendIf(spec.arguments, "--drain-seconds", absl::StrCat(options.drain_seconds));
  AppendIf(spec.arguments, "--log-level", log_level);
  if (options.verify) spec.arguments.push_back("--verify");
  return spec;
}

ChildSpec GatewaySpec(const ServiceOptions& options, const std::string& coordinator,
                      const std::string& log_level) {
  ChildSpec spec{.name = "gateway", .needed_at_start = true, .stop_rank = kGatewayRank};
  spec.arguments = {ProgramPath("warpline-gateway"),
                    "--coordinator",
                    coordinator,
                    "--host",
                    options.gateway_host,
                    "--port",
                    absl::StrCat(options.gateway_port),
                    "--log-level",
                    log_level};
  spec.environment = SecretVariables(options);
  AppendIf(spec.arguments, "--cors-origin", options.cors_origin);
  AppendIf(spec.arguments, "--alias", options.alias);
  AppendIf(spec.arguments, "--drain-seconds", absl::StrCat(options.drain_seconds));
  if (options.strict_model) spec.arguments.push_back("--strict-model");
  return spec;
}

std::vector<ChildSpec> ServiceSpecs(const ServiceOptions& options, const std::string& folder,
                                    const std::string& log_level) {
  const std::vector<int> threads = WorkerThreads(options);
  std::vector<ChildSpec> specs;
  std::vector<std::string> workers;
  for (int index = 0; index < options.workers; ++index) {
    workers.push_back(absl::StrCat("unix:", folder, "/worker-", index, ".sock"));
    specs.push_back(WorkerSpec(options, index, threads[index], workers.back(), log_level));
  }
  const std::string coordinator = absl::StrCat("unix:", folder, "/coordinator.sock");
  specs.push_back(CoordinatorSpec(options, workers, coordinator, log_level));
  if (!options.no_gateway) specs.push_back(GatewaySpec(options, coordinator, log_level));
  return specs;
}

int Serve(const ServiceOptions& options, const std::string& log_level) {
  if (const std::string conflict = ConflictOf(options); !conflict.empty()) {
    return UsageError("warpline", conflict);
  }
  if (!options.socket_dir.empty()) {
    const absl::Status fits = CheckSocketPaths(options.socket_dir);
    if (!fits.ok()) return UsageError("warpline", absl::StrCat("--socket-dir: ", fits.message()));
  }
  const auto failed = [](const absl::Status& status) {
    std::cerr << "warpline: " << status.message() << std::endl;
    return kExitFailure;
  };
  absl::StatusOr<SocketFolder> folder = SocketFolder::Create(options.socket_dir);
  if (!folder.ok()) return failed(folder.status());
  // One under TMPDIR may have too long a path as well.
  if (absl::Status fits = CheckSocketPaths(folder->path()); !fits.ok()) return failed(fits);
  absl::StatusOr<Supervisor> supervisor =
      Supervisor::Create(folder->path(), ServiceSpecs(options, folder->path(), log_level));
  if (!supervisor.ok()) return failed(supervisor.status());
  return supervisor->Run(options.watch_fd, options.drain_seconds + 5);
}

}  // namespace

Command MakeServeCommand(CLI::App& app, Flags& flags) {
  CLI::App* const command =
      app.add_subcommand("serve", "Start coordinator, workers and gateway, and keep them running");
  auto options = std::make_shared<ServiceOptions>();
  AddEngineOptions(flags, *command, *options);
  AddFrontOptions(flags, *command, *options);
  flags.AddFlag(*command, "--no-gateway", options->no_gateway, "Start no REST gateway");
  flags.Add(*command, "--socket-dir", options->socket_dir,
            "Folder of the private sockets (default: a new one under TMPDIR)");
  flags
      .Add(*command, "--watch-fd", options->watch_fd,
           "Inherited descriptor; the service ends when it is closed")
      ->check(OpenDescriptor());
  return {.app = command, .run = [options, &app] {
            return Serve(*options, app.get_option("--log-level")->as<std::string>());
          }};
}

}  // namespace warpline
