// `warpline tokenize`: what the tokenizer of a model file makes of a text, and back.
#pragma once

#include "base/flags.h"
#include "client/cli/command.h"

namespace warpline {

Command MakeTokenizeCommand(CLI::App& app, Flags& flags);

}  // namespace warpline
