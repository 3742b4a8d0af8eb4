// `warpline bench`: how fast a service reads prompts and generates, measured at an HTTP client,
// with a fresh start for every run.
#pragma once

#include "base/flags.h"
#include "client/cli/command.h"

namespace warpline {

Command MakeBenchCommand(CLI::App& app, Flags& flags);

}  // namespace warpline
