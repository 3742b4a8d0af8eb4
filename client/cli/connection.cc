#include "client/cli/connection.h"

#include <iostream>

#include "base/log.h"
#include "client/cli/progress_bar.h"

namespace warpline {

void AddConnectionOptions(Flags& flags, CLI::App& command, ConnectionOptions& options) {
  AddEngineOptions(flags, command, options.service);
  CLI::Option* const model = command.get_option("--model");
  model->required(false);
  flags
      .Add(command, "--coordinator", options.coordinator,
           "gRPC address of a running coordinator, such as 127.0.0.1:50051 (otherwise a service is "
           "started)")
      ->excludes(model);
}

Connection::Connection(const ConnectionOptions& options, const std::string& log_level) {
  if (!options.coordinator.empty()) {
    client_ = std::make_unique<InferenceClient>(options.coordinator);
    return;
  }
  if (options.service.model.empty()) {
    exit_code_ = UsageError("warpline", "--model or --coordinator is required");
    return;
  }
  absl::StatusOr<std::unique_ptr<LocalService>> service =
      LocalService::Start(options.service, log_level);
  if (!service.ok()) {
    exit_code_ = ReportFailure(service.status());
    return;
  }
  service_ = *std::move(service);
  ProgressBar bar;
  exit_code_ = service_->WaitUntilReady([&bar](absl::string_view status) {
    const double loaded = LoadedFraction(status);
    bar.Show(loaded >= 0 ? "loading the model" : status, loaded);
  });
  client_ = std::make_unique<InferenceClient>(service_->coordinator_address());
}

int ReportFailure(const absl::Status& status) {
  std::cerr << "warpline: " << EscapeForLog(status.message()) << std::endl;
  return kExitFailure;
}

}  // namespace warpline
