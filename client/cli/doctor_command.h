// `warpline doctor`: the sheet of all devices.
#pragma once

#include "base/flags.h"
#include "client/cli/command.h"

namespace warpline {

Command MakeDoctorCommand(CLI::App& app, Flags& flags);

}  // namespace warpline
