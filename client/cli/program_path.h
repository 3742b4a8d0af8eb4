// Where the other programs of this installation are: beside the running one.
#pragma once

#include <string>

namespace warpline {

// "/usr/bin/warpline-worker" for "warpline-worker".
std::string ProgramPath(const std::string& name);

}  // namespace warpline
