// `warpline eval`: logits and perplexity of given tokens, computed by worker processes of this
// command's own.
#pragma once

#include "base/flags.h"
#include "client/cli/command.h"

namespace warpline {

Command MakeEvalCommand(CLI::App& app, Flags& flags);

}  // namespace warpline
