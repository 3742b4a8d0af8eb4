#include "client/cli/status_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/connection.h"
#include "client/cli/device_memory.h"
#include "client/cli/program_path.h"
#include "client/cli/service_options.h"

namespace warpline {
namespace {

constexpr int kTimeoutSeconds = 5;

std::string StageLine(const v1::StageStatus& stage) {
  std::string line =
      absl::StrFormat("stage %-3d %-11s layers [%d, %d)  pid %-8s restarts %-3d", stage.stage(),
                      stage.state(), stage.layer_begin(), stage.layer_end(),
                      stage.has_pid() ? absl::StrCat(stage.pid()) : "-", stage.restarts());
  if (stage.weight_bytes() > 0) {
    absl::StrAppendFormat(&line, " weights %.2f GiB cache %.2f GiB",
                          static_cast<double>(stage.weight_bytes()) / (1 << 30),
                          static_cast<double>(stage.cache_bytes()) / (1 << 30));
  }
  if (!stage.edge().empty()) absl::StrAppend(&line, " edge ", stage.edge());
  if (!stage.device().empty()) absl::StrAppend(&line, "  ", stage.device());
  if (!stage.reason().empty()) absl::StrAppend(&line, "  (", stage.reason(), ")");
  return line;
}

int ShowStatus(const std::string& coordinator) {
  const absl::StatusOr<v1::StatusResponse> status =
      InferenceClient(coordinator).GetStatus(kTimeoutSeconds);
  if (!status.ok()) return ReportFailure(status.status());
  std::cout
      << (status->ready() ? "ready" : status->reason()) << "\n"
      << absl::StrFormat("model %s (%s, %d layers), context %d tokens\n", status->model().name(),
                         status->model().architecture(), status->model().layer_count(),
                         status->context_length())
      << absl::StrFormat(
             "coordinator pid %d, version %s: %d running, %d queued, %d slots, pages %d of %d\n",
             status->coordinator_pid(), status->version(), status->running(), status->queued(),
             status->slots(), status->pages_used(), status->pages_total());
  for (const v1::StageStatus& stage : status->stages()) std::cout << StageLine(stage) << "\n";
  return status->ready() ? kExitOk : kExitFailure;
}

// Becomes `warpline-coordinator --print-plan`.
int ExecPlan(const ServiceOptions& options) {
  std::vector<std::string> arguments = {ProgramPath("warpline-coordinator"),
                                        "--print-plan",
                                        "--model",
                                        options.model,
                                        "--worker-count",
                                        absl::StrCat(options.workers),
                                        "--parallel",
                                        absl::StrCat(options.parallel),
                                        "--chunk",
                                        absl::StrCat(options.chunk),
                                        "--kv-type",
                                        options.kv_type,
                                        "--worker-threads",
                                        absl::StrCat(WorkerThreads(options)[0]),
                                        "--ple-io",
                                        options.ple_io,
                                        "--ple-cache-mib",
                                        absl::StrCat(options.ple_cache_mib)};
  arguments.insert(arguments.end(), {"--backend", options.backend, "--device", options.device});
  if (const std::string memory = DeviceMemoryList(options); !memory.empty()) {
    arguments.insert(arguments.end(), {"--device-memory", memory});
  }
  if (options.ctx_size > 0)
    arguments.insert(arguments.end(), {"--ctx-size", absl::StrCat(options.ctx_size)});
  if (!options.layer_split.empty() && options.layer_split != "auto") {
    arguments.insert(arguments.end(), {"--layer-split", options.layer_split});
  }
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv(pointers[0], pointers.data());
  return ReportFailure(
      absl::InternalError(absl::StrCat("cannot start ", arguments[0], ": ", std::strerror(errno))));
}

}  // namespace

Command MakeStatusCommand(CLI::App& app, Flags& flags) {
  CLI::App* const command =
      app.add_subcommand("status", "Show the stages of a running service (exit 1 while not ready)");
  auto coordinator = std::make_shared<std::string>("127.0.0.1:50051");
  flags.Add(*command, "--coordinator", *coordinator, "gRPC address of the coordinator");
  return {.app = command, .run = [coordinator] { return ShowStatus(*coordinator); }};
}

Command MakePlanCommand(CLI::App& app, Flags& flags) {
  CLI::App* const command =
      app.add_subcommand("plan", "Show how a model would be split and what fits");
  auto options = std::make_shared<ServiceOptions>();
  AddEngineOptions(flags, *command, *options);
  return {.app = command, .run = [options] { return ExecPlan(*options); }};
}

}  // namespace warpline
