// The table of all expert kernels of this build: one generated translation unit for each tensor
// type (tile_instances.cu.in) appends its rows.
#pragma once

#include <vector>

#include "kernels/cuda/kernel_row.h"
#include "model/quant.h"

namespace warpline::cuda {

// The rows of one type; specialised in the translation unit of that type.
template <QuantType kType>
void AppendTileRows(std::vector<KernelRow>& rows);

// The rows of all types.
std::vector<KernelRow> TileRows();

}  // namespace warpline::cuda
