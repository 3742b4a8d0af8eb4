// The `warpline` program: picks the subcommand and runs it.
#include <iostream>
#include <vector>

#include "base/flags.h"
#include "base/process.h"
#include "client/cli/chat_command.h"
#include "client/cli/eval_command.h"
#include "client/cli/serve_command.h"
#include "client/cli/status_command.h"
#include "client/cli/tokenize_command.h"

int main(int argc, char** argv) {
  warpline::BlockSignals();
  CLI::App app{
      "Serves large mixture-of-experts models from GGUF files, one worker process per device."};
  app.require_subcommand(1);
  warpline::Flags flags(app, "warpline");
  const std::vector<warpline::Command> commands = {
      warpline::MakeServeCommand(app, flags),    warpline::MakeChatCommand(app, flags),
      warpline::MakeCompleteCommand(app, flags), warpline::MakeTokenizeCommand(app, flags),
      warpline::MakePlanCommand(app, flags),     warpline::MakeStatusCommand(app, flags),
      warpline::MakeEvalCommand(app, flags)};
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
  for (const warpline::Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return warpline::kExitUsage;
}
