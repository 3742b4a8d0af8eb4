// Checks of op arguments. All return InvalidArgument: a bug in the caller.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/row_ops.h"

namespace warpline::cuda {

// The tensor lies inside its buffer and has this width (-1: any) and row count (-1: any).
absl::StatusOr<FloatRows> CheckRows(absl::string_view name, const Tensor& tensor, int64_t row_count,
                                    int64_t width);

// A vector of at least `count` values; null when `buffer` is null.
absl::StatusOr<const float*> CheckVector(absl::string_view name, const Buffer* buffer,
                                         int64_t count);

// A matrix with its bias.
struct CheckedMatrix {
  const CudaWeight* weight = nullptr;
  const float* bias = nullptr;
};
// It has these widths and number of experts (-1: any).
absl::StatusOr<CheckedMatrix> CheckMatrix(absl::string_view name, const LinearWeight& matrix,
                                          int64_t input_width, int64_t output_width,
                                          int64_t expert_count);

absl::StatusOr<const CudaKvCache*> CheckCache(const KvCache* cache, int n_head, int n_head_kv,
                                              int head_dim, int32_t largest_page);

}  // namespace warpline::cuda
