#include "kernels/cuda/cuda_checks.h"

#include "absl/strings/str_cat.h"

namespace warpline::cuda {
namespace {

absl::Status Mismatch(absl::string_view name, absl::string_view what, int64_t got, int64_t wanted) {
  return absl::InvalidArgumentError(absl::StrCat(name, " has ", what, " ", got, ", not ", wanted));
}

}  // namespace

absl::StatusOr<FloatRows> CheckRows(absl::string_view name, const Tensor& tensor, int64_t row_count,
                                    int64_t width) {
  constexpr int64_t kMaxCount = int64_t{1} << 31;  // kernels count rows and columns in 32 bits
  if (tensor.buffer == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has no buffer"));
  }
  if (row_count >= 0 && tensor.row_count != row_count) {
    return Mismatch(name, "rows", tensor.row_count, row_count);
  }
  if (width >= 0 && tensor.width != width) return Mismatch(name, "width", tensor.width, width);
  const auto& buffer = static_cast<const CudaBuffer&>(*tensor.buffer);
  int64_t end = 0;
  const bool bad = tensor.row_count < 0 || tensor.row_count >= kMaxCount || tensor.width <= 0 ||
                   tensor.width >= kMaxCount || tensor.stride < tensor.width || tensor.first < 0 ||
                   __builtin_mul_overflow(tensor.row_count - 1, tensor.stride, &end) ||
                   __builtin_add_overflow(end, tensor.first, &end) ||
                   __builtin_add_overflow(end, tensor.width, &end) ||
                   (tensor.row_count > 0 && end > buffer.float_count());
  if (bad) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " of ", tensor.row_count, " rows, width ", tensor.width, ", stride ", tensor.stride,
        " at ", tensor.first, " does not fit a buffer of ", buffer.float_count(), " values"));
  }
  return FloatRows{buffer.floats() + tensor.first, tensor.row_count, tensor.width, tensor.stride};
}

absl::StatusOr<const float*> CheckVector(absl::string_view name, const Buffer* buffer,
                                         int64_t count) {
  if (buffer == nullptr) return nullptr;
  const auto& vector = static_cast<const CudaBuffer&>(*buffer);
  if (vector.float_count() < count) return Mismatch(name, "values", vector.float_count(), count);
  return vector.floats();
}

absl::StatusOr<CheckedMatrix> CheckMatrix(absl::string_view name, const LinearWeight& matrix,
                                          int64_t input_width, int64_t output_width,
                                          int64_t expert_count) {
  if (matrix.weight == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is missing"));
  }
  const auto& weight = static_cast<const CudaWeight&>(*matrix.weight);
  if (input_width >= 0 && weight.input_width() != input_width) {
    return Mismatch(name, "input width", weight.input_width(), input_width);
  }
  if (output_width >= 0 && weight.output_width() != output_width) {
    return Mismatch(name, "output width", weight.output_width(), output_width);
  }
  if (expert_count >= 0 && weight.expert_count() != expert_count) {
    return Mismatch(name, "experts", weight.expert_count(), expert_count);
  }
  CheckedMatrix checked{.weight = &weight};
  WL_ASSIGN_OR_RETURN(checked.bias, CheckVector(name, matrix.bias, weight.output_width()));
  return checked;
}

absl::StatusOr<const CudaKvCache*> CheckCache(const KvCache* cache, int n_head, int n_head_kv,
                                              int head_dim, int32_t largest_page) {
  if (cache == nullptr) return absl::InvalidArgumentError("no KV cache");
  const auto& own = static_cast<const CudaKvCache&>(*cache);
  if (n_head_kv <= 0 || n_head <= 0 || n_head % n_head_kv != 0) {
    return absl::InvalidArgumentError(absl::StrCat(n_head, " heads over ", n_head_kv, " KV heads"));
  }
  if (own.args().n_head_kv != n_head_kv) {
    return Mismatch("KV cache", "heads", own.args().n_head_kv, n_head_kv);
  }
  if (own.args().head_dim != head_dim) {
    return Mismatch("KV cache", "head size", own.args().head_dim, head_dim);
  }
  if (largest_page >= own.args().page_count) {
    return absl::InvalidArgumentError(absl::StrCat("page ", largest_page, " of a KV cache with ",
                                                   own.args().page_count, " pages"));
  }
  return &own;
}

}  // namespace warpline::cuda
