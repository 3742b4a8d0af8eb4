// `warpline-worker --doctor` and `--show-device-memory`: what the devices of this machine are, can
// do and have.
#pragma once

namespace warpline {

// Prints the sheet; gives the exit code: 0, 1 where a device failed its check, 77 where there is no
// device or no CUDA back end.
int RunDoctor();

// Prints "FREE TOTAL", bytes of a device; gives the exit code, 77 as above.
int ShowDeviceMemory(int device);

}  // namespace warpline
