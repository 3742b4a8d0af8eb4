// `warpline chat`: a conversation on the terminal; `warpline complete`: a text continued.
#pragma once

#include "base/flags.h"
#include "client/cli/command.h"

namespace warpline {

Command MakeChatCommand(CLI::App& app, Flags& flags);
Command MakeCompleteCommand(CLI::App& app, Flags& flags);

}  // namespace warpline
