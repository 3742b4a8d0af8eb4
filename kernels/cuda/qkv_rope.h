// Between the projections and attention: norms and rotation of q and k, and keys and values into
// their pages.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/step_view.h"

namespace warpline::cuda {

// All pointers are device memory.
struct QkvRopeArgs {
  StepView step;
  float* q = nullptr;  // [rows, n_head * head_dim], changed in place
  int64_t q_stride = 0;
  const float* k = nullptr;  // [rows, n_head_kv * head_dim]
  int64_t k_stride = 0;
  const float* v = nullptr;  // [rows, n_head_kv * head_dim]
  int64_t v_stride = 0;
  int32_t n_head = 0;
  const float* q_gamma = nullptr;  // [head_dim]: RMSNorm of each head; null: none
  const float* k_gamma = nullptr;
  float eps = 0;
  const float2* rotation = nullptr;  // [rows, pairs], from RopeTables
  int32_t pairs = 0;                 // 0: no rotation
  bool interleaved = false;          // pairs (2 i, 2 i + 1), otherwise (i, i + pairs)
  KvView cache;
  bool is_early = false;  // may start while the kernel before it ends (sm_90)
};

// Asynchronous on `stream`.
absl::Status QkvRopeStore(const QkvRopeArgs& args, cudaStream_t stream);

}  // namespace warpline::cuda
