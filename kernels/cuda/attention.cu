#include "kernels/cuda/attention.h"

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention_generic.cuh"
#include "kernels/cuda/cuda_status.h"

namespace warpline::cuda {
namespace {

absl::Status CheckJob(const AttentionJob& job) {
  const KvLayout& layout = job.cache.layout;
  constexpr int kMostRows = 65535;  // of a grid's second dimension
  if (job.step.row_count > kMostRows || layout.head_dim < 1 || layout.head_dim > kMaxHeadDim ||
      job.cache.n_head_kv < 1 || job.n_head % job.cache.n_head_kv != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention of ", job.step.row_count, " rows (at most ", kMostRows, "), ",
                     job.n_head, " heads over ", job.cache.n_head_kv, " of size ", layout.head_dim,
                     " (at most ", kMaxHeadDim, ")"));
  }
  return absl::OkStatus();
}

absl::Status RunGeneric(const AttentionJob& job, cudaStream_t stream) {
  const dim3 grid((job.n_head + kGenericWarps - 1) / kGenericWarps, job.step.row_count);
  const dim3 block(kGenericWarps * 32);
  switch (job.cache.layout.type) {
    case KvType::kF32:
      AttendGeneric<KvType::kF32><<<grid, block, 0, stream>>>(job);
      break;
    case KvType::kF16:
      AttendGeneric<KvType::kF16><<<grid, block, 0, stream>>>(job);
      break;
    case KvType::kQ8_0:
      AttendGeneric<KvType::kQ8_0><<<grid, block, 0, stream>>>(job);
      break;
  }
  return LaunchStatus("attention");
}

}  // namespace

absl::StatusOr<PagedAttention> PagedAttention::Create(const Device& device) {
  return PagedAttention(device.facts());
}

absl::Status PagedAttention::Reserve(const ReserveArgs&) { return absl::OkStatus(); }

AttentionPath PagedAttention::PathOf(bool, const KvLayout&, int, int) const {
  return AttentionPath::kGeneric;
}

absl::Status PagedAttention::Run(const AttentionJob& job, cudaStream_t stream) const {
  WL_RETURN_IF_ERROR(CheckJob(job));
  if (job.step.row_count == 0) return absl::OkStatus();
  return RunGeneric(job, stream);
}

}  // namespace warpline::cuda
