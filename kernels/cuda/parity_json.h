// The results of warpline-parity as a file for programs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/parity.h"

namespace warpline::cuda {

// Writes {"results": [{"device": .., ..}, ..]}. Internal where the file cannot be written.
absl::Status WriteJson(const std::string& path, const std::vector<ParityLine>& lines);

}  // namespace warpline::cuda
