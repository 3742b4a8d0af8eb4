// `warpline-worker --doctor`: what the devices of this machine are and can do.
#pragma once

namespace warpline {

// Prints the sheet; gives the exit code: 0, 1 where a device failed its check, 77 where there is no
// device or no CUDA back end.
int RunDoctor();

}  // namespace warpline
