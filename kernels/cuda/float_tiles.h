// Products with float weights in single precision for the rows of prompts, in tiles.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "kernels/cuda/float_product.h"

namespace warpline::cuda {

// Whether FloatTiles can take this product and is worth it. Rows do not matter: all rows of a
// matrix go one way.
bool TakesFloatTiles(const FloatProductArgs& args);

// The sums of float_tile.h, the same bits whatever the other rows. Asynchronous on `stream`.
absl::Status FloatTiles(const FloatProductArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
