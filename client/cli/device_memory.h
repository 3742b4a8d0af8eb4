// How much memory the cards of this machine have free, for the plan of a service.
#pragma once

#include <string>

#include "client/cli/service_options.h"

namespace warpline {

// What the coordinator is told of the cards by --device-memory: as it was given, else what workers
// say that look at each of the devices; "" for the CPU, and where a device cannot be asked.
std::string DeviceMemoryList(const ServiceOptions& options);

}  // namespace warpline
