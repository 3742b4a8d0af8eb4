// HyperMixArgs and PleArgs with the back end's own types; checked.
#pragma once

#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/op_checks.h"

namespace warpline {

struct HyperJob {
  CpuRows wide, out, inject_out;
  int64_t n_embd = 0;
  int64_t low_rank = 0;
  const float* gamma = nullptr;
  MatrixSlice down, up, inject;  // inject without weight: none
};

struct PleJob {
  CpuRows ngrams, wide;
  int64_t n_embd = 0;
  const float* key_gamma = nullptr;
  const float* query_gamma = nullptr;
  const float* conv_gamma = nullptr;
  const float* kernel = nullptr;
  MatrixSlice key, value;
  CpuSlotState* columns = nullptr;
};

}  // namespace warpline
