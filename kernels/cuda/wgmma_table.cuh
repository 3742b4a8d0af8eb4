// The rows of the kernel table for wgmma.
#pragma once

#include <vector>

#include "kernels/cuda/kernel_row.h"
#include "kernels/cuda/wgmma_tile.cuh"
#include "model/quant.h"

namespace warpline::cuda {

template <QuantType kType, int kN, bool kFused>
KernelRow MakeWgmmaRow(const char* name) {
  using Shape = WgmmaShape<kType, kN, kFused>;
  return {.name = name,
          .policy = Policy::kWgmma,
          .op = kFused ? Op::kGateUp : Op::kPlain,
          .type = kType,
          .n = kN,
          .m = Shape::kM,
          .shared_bytes = Shape::kSharedBytes,
          .threads = Shape::kThreads,
          .min_capability = 90,
          .max_capability = 90,
          .function = reinterpret_cast<const void*>(&WgmmaTile<kType, kN, kFused>)};
}

// The kernels of one type, largest n first; instantiates them.
template <QuantType kType>
void AppendWgmmaRows(std::vector<KernelRow>& rows) {
  rows.push_back(MakeWgmmaRow<kType, 256, true>("wgmma_gate_up_256"));
  rows.push_back(MakeWgmmaRow<kType, 192, true>("wgmma_gate_up_192"));
  rows.push_back(MakeWgmmaRow<kType, 128, true>("wgmma_gate_up_128"));
  rows.push_back(MakeWgmmaRow<kType, 64, true>("wgmma_gate_up_64"));
  rows.push_back(MakeWgmmaRow<kType, 32, true>("wgmma_gate_up_32"));
  rows.push_back(MakeWgmmaRow<kType, 256, false>("wgmma_plain_256"));
  rows.push_back(MakeWgmmaRow<kType, 192, false>("wgmma_plain_192"));
  rows.push_back(MakeWgmmaRow<kType, 128, false>("wgmma_plain_128"));
  rows.push_back(MakeWgmmaRow<kType, 64, false>("wgmma_plain_64"));
  rows.push_back(MakeWgmmaRow<kType, 32, false>("wgmma_plain_32"));
}

}  // namespace warpline::cuda
