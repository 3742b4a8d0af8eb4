// `warpline serve`: coordinator, workers and gateway on this machine, supervised.
#pragma once

#include "base/flags.h"
#include "client/cli/command.h"

namespace warpline {

Command MakeServeCommand(CLI::App& app, Flags& flags);

}  // namespace warpline
