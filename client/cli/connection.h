// The coordinator a command talks to: a running one, or a service started for this command alone.
#pragma once

#include <memory>
#include <string>

#include "base/flags.h"
#include "client/cli/inference_client.h"
#include "client/cli/local_service.h"
#include "client/cli/service_options.h"

namespace warpline {

struct ConnectionOptions {
  std::string coordinator;  // address; empty: start a service
  ServiceOptions service;
};

// Adds --coordinator and the service options (-m is needed only without --coordinator).
void AddConnectionOptions(Flags& flags, CLI::App& command, ConnectionOptions& options);

class Connection {
 public:
  // Starts the service if need be, with a progress bar; `log_level` is its. On failure exit_code()
  // says what to end with.
  Connection(const ConnectionOptions& options, const std::string& log_level);

  int exit_code() const { return exit_code_; }  // -1: connected
  InferenceClient& client() { return *client_; }

 private:
  std::unique_ptr<LocalService> service_;
  std::unique_ptr<InferenceClient> client_;
  int exit_code_ = -1;
};

// Prints "warpline: message" on stderr; gives the exit code for it.
int ReportFailure(const absl::Status& status);

}  // namespace warpline
