// `warpline status`: what a running service is doing; `warpline plan`: what a model would need on
// this machine.
#pragma once

#include "base/flags.h"
#include "client/cli/command.h"

namespace warpline {

Command MakeStatusCommand(CLI::App& app, Flags& flags);
Command MakePlanCommand(CLI::App& app, Flags& flags);

}  // namespace warpline
