// warpline-parity inside the CUDA library: every expert kernel against double-precision products,
// on each device in turn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_library.h"
#include "kernels/cuda/kernel_choice.h"
#include "model/quant.h"

namespace warpline::cuda {

// See CudaApi::Parity.
absl::StatusOr<ParityResult> RunParity(const ParityOptions& options);

// What the names in the options stand for.
struct ParitySelection {
  std::vector<QuantType> types;
  std::vector<Policy> policies;
};
absl::StatusOr<ParitySelection> SelectParity(const ParityOptions& options);
// The devices asked for.
absl::StatusOr<std::vector<int>> SelectDevices(const ParityOptions& options);

// One line of the result, over all row counts.
struct ParityLine {
  std::string device;
  std::string type;
  std::string shape;  // "1280x2560"
  std::string op;     // "gate_up f16"
  std::string policy;
  int cases = 0;
  double max_error = 0;
  double max_reference = 0;
  double bound = 0;       // of max_excess
  double max_excess = 0;  // of |error| beyond the rounding of the output to its type
  std::string failure;    // empty: it passed
};

}  // namespace warpline::cuda
