// The `warpline` program: picks the subcommand and runs it.
#include <iostream>
#include <vector>

#include "base/flags.h"
#include "base/process.h"
#include "client/cli/bench_command.h"
#include "client/cli/chat_command.h"
#include "client/cli/doctor_command.h"
#include "client/cli/eval_command.h"
#include "client/cli/serve_command.h"
#include "client/cli/status_command.h"
#include "client/cli/tokenize_command.h"

namespace warpline {
namespace {

int Main(int argc, char** argv) {
  InstallTerminateHandler();
  BlockSignals();
  CLI::App app{
      "Serves large mixture-of-experts models from GGUF files, one worker process per device."};
  app.require_subcommand(1);
  Flags flags(app, "warpline");
  const std::vector<Command> commands = {
      MakeServeCommand(app, flags),    MakeChatCommand(app, flags),
      MakeCompleteCommand(app, flags), MakeTokenizeCommand(app, flags),
      MakePlanCommand(app, flags),     MakeStatusCommand(app, flags),
      MakeEvalCommand(app, flags),     MakeBenchCommand(app, flags),
      MakeDoctorCommand(app, flags)};
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return kExitUsage;
}

}  // namespace
}  // namespace warpline

int main(int argc, char** argv) {
  return warpline::FinishOutput("warpline", warpline::Main(argc, argv));
}
