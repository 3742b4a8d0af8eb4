// One expert kernel as a row of a constant table, and the words for what it computes and how.
// Without abseil, for the many translation units of kernels.
#pragma once

#include <cstdint>

#include "model/quant.h"

namespace warpline::cuda {

// How a product is computed, best first; what a device cannot do falls to the next.
enum class Policy : int32_t {
  kWgmma = 0,    // warpgroup MMA, weights decoded in registers (sm_90a)
  kMmaSync = 1,  // warp MMA, weights decoded in registers (sm_75 and newer)
  kWmma = 2,     // the WMMA interface (sm_70 and newer)
  kOff = 3,      // decode to halves in memory, then the vendor's dense product
};
constexpr int kPolicyCount = 4;

// What a kernel computes; see GroupedArgs. "Few" kernels take the rows of a decode step.
enum class Op : int32_t { kGateUp = 0, kPlain = 1, kFewGateUp = 2, kFewPlain = 3 };
constexpr int kOpCount = 4;

// One kernel. A table of these is constant data: it knows no device.
struct KernelRow {
  const char* name = "";
  Policy policy = Policy::kOff;
  Op op = Op::kPlain;
  QuantType type = QuantType::kF16;
  int n = 0;                       // tokens of a tile, at most
  int m = 0;                       // weight rows of a tile
  int shared_bytes = 0;            // dynamic shared memory of a launch
  int threads = 0;                 // of a block
  int min_capability = 0;          // compute capability, 90 for 9.0
  int max_capability = 10000;      // the last that runs it; 90 for code of sm_90a
  const void* function = nullptr;  // null: nothing has to be prepared (the policy `off`)
};

}  // namespace warpline::cuda
