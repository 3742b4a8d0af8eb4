// warpline-parity --bench: how fast the expert kernels of a device are, beside dense products of
// cuBLAS in the same run.
#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/cuda_library.h"
#include "kernels/cuda/parity.h"

namespace warpline::cuda {

// Prints one line for each case: uniform rows, random routing, decode steps. Shapes are those of a
// model with 128 experts of which each token takes 8, 2,048 wide, n_ff 768. Weights and activations
// are several times the L2 cache.
absl::Status RunBench(int ordinal, const ParityOptions& options, const ParitySelection& selection);

}  // namespace warpline::cuda
