// Checks of op arguments. All return InvalidArgument: a bug in the caller.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_memory.h"
#include "kernels/cpu/matrix_product.h"

namespace warpline {

// A tensor of the CPU back end with its data.
struct CpuRows {
  float* data = nullptr;
  int64_t row_count = 0;
  int64_t width = 0;
  int64_t stride = 0;
  float* Row(int64_t row) const { return data + row * stride; }
};

// The tensor lies inside its buffer and has this width (-1: any) and row count (-1: any).
absl::StatusOr<CpuRows> CheckTensor(absl::string_view name, const Tensor& tensor, int64_t row_count,
                                    int64_t width);

// out (+)= matrix in.
inline MatrixJob PlainJob(const MatrixSlice& matrix, const CpuRows& in, const CpuRows& out,
                          bool accumulate) {
  return {.matrix = matrix,
          .x = in.data,
          .x_stride = in.stride,
          .row_count = in.row_count,
          .column_count = out.width,
          .out = out.data,
          .out_stride = out.stride,
          .accumulate = accumulate};
}

// A vector of `count` values; null when `buffer` is null.
absl::StatusOr<const float*> CheckVector(absl::string_view name, const Buffer* buffer,
                                         int64_t count);

// The same, but there must be one.
absl::StatusOr<const float*> CheckNeeded(absl::string_view name, const Buffer* buffer,
                                         int64_t count);

// A matrix with these widths (-1: any) and number of experts, and its bias.
absl::StatusOr<MatrixSlice> CheckMatrix(absl::string_view name, const LinearWeight& matrix,
                                        int64_t input_width, int64_t output_width,
                                        int64_t expert_count);

absl::StatusOr<const CpuKvCache*> CheckCache(const KvCache* cache, int n_head, int n_head_kv,
                                             int head_dim, int32_t largest_page);

// A state with this many values for each slot, for all slots up to `largest_slot`.
absl::StatusOr<CpuSlotState*> CheckState(absl::string_view name, SlotState* state,
                                         int64_t value_count, int largest_slot);

}  // namespace warpline
