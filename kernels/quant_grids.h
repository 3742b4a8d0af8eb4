// The number tables of the IQ and FP4 formats, in host memory.
#pragma once

#include "kernels/quant_decode_common.h"

namespace warpline {

// Entry counts of the grids; see QuantGrids for what an entry is.
constexpr int kIQ2XXSGridSize = 256;
constexpr int kIQ2XSGridSize = 512;
constexpr int kIQ2SGridSize = 1024;
constexpr int kIQ3XXSGridSize = 256;
constexpr int kIQ3SGridSize = 512;
constexpr int kIQ1GridSize = 2048;

// Constant tables; valid for the life of the program.
const QuantGrids& HostQuantGrids();

}  // namespace warpline
