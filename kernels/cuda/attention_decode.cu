#include "kernels/cuda/attention_decode.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/early_launch.h"

namespace warpline::cuda {
namespace {

// The kernel of one kind of layer.
struct DecodeKernel {
  KvType type;
  int head_dim;
  bool is_wide;
  int shared_bytes;
  const void* function;
  const void* join;
};

template <KvType kType, int kDim, bool kWide>
constexpr DecodeKernel MakeKernel() {
  return {.type = kType,
          .head_dim = kDim,
          .is_wide = kWide,
          .shared_bytes = DecodeShape<kType, kDim, kWide>::kSharedBytes,
          .function = reinterpret_cast<const void*>(&DecodeAttention<kType, kDim, kWide>),
          .join = reinterpret_cast<const void*>(&JoinParts<kDim>)};
}

const DecodeKernel kKernels[] = {
    MakeKernel<KvType::kF16, 64, false>(),   MakeKernel<KvType::kF16, 64, true>(),
    MakeKernel<KvType::kF16, 128, false>(),  MakeKernel<KvType::kF16, 128, true>(),
    MakeKernel<KvType::kF16, 256, false>(),  MakeKernel<KvType::kF16, 256, true>(),
    MakeKernel<KvType::kQ8_0, 64, false>(),  MakeKernel<KvType::kQ8_0, 64, true>(),
    MakeKernel<KvType::kQ8_0, 128, false>(), MakeKernel<KvType::kQ8_0, 128, true>(),
    MakeKernel<KvType::kQ8_0, 256, false>(), MakeKernel<KvType::kQ8_0, 256, true>(),
};

const DecodeKernel* FindKernel(const KvLayout& layout, int n_head, int n_head_kv) {
  const int group = n_head / n_head_kv;
  for (const DecodeKernel& kernel : kKernels) {
    if (kernel.type == layout.type && kernel.head_dim == layout.head_dim &&
        kernel.is_wide == (group > 8) && group <= kMaxDecodeGroup) {
      return &kernel;
    }
  }
  return nullptr;
}

}  // namespace

int64_t MostParts(int64_t seen, bool is_window) {
  int64_t most = 1;
  for (const int64_t limit : {int64_t{kWholeSeen}, int64_t{2048}, int64_t{16384}, seen}) {
    const int64_t longest = std::min(limit, seen);
    const int64_t tokens = int64_t{kPageTokens} * PartPages(static_cast<int>(longest));
    most = std::max(most, (longest + tokens - 1) / tokens + (is_window ? 1 : 0));
  }
  return most;
}

bool HasDecodeKernel(const KvLayout& layout, int n_head, int n_head_kv) {
  return FindKernel(layout, n_head, n_head_kv) != nullptr;
}

int64_t DecodeScratchBytes(int64_t rows, int n_head_kv, int head_dim, int64_t max_parts) {
  return rows * n_head_kv * max_parts * kMaxDecodeGroup *
         static_cast<int64_t>(head_dim * sizeof(float) + sizeof(float2));
}

absl::Status PrepareDecode(const DeviceLimits& limits) {
  if (limits.capability != 90) {
    return absl::FailedPreconditionError(
        absl::StrCat("is code for sm_90, device ", limits.ordinal, " is sm_", limits.capability));
  }
  RuntimeDriver driver;
  for (const DecodeKernel& kernel : kKernels) {
    WL_RETURN_IF_ERROR(driver.SetSharedLimit(kernel.function, kernel.shared_bytes));
    WL_ASSIGN_OR_RETURN(const int blocks, driver.ResidentBlocks(kernel.function, kDecodeThreads,
                                                                kernel.shared_bytes));
    if (blocks < 1) return absl::FailedPreconditionError("does not fit a multiprocessor");
  }
  return absl::OkStatus();
}

absl::Status EnqueueDecode(const DecodeArgs& args, cudaStream_t stream) {
  const AttentionJob& job = args.job;
  const DecodeKernel* const kernel = FindKernel(job.cache.layout, job.n_head, job.cache.n_head_kv);
  if (kernel == nullptr) return absl::InternalError("no kernel for this attention");
  const unsigned rows = static_cast<unsigned>(job.step.row_count);
  const unsigned kv_heads = static_cast<unsigned>(job.cache.n_head_kv);
  const dim3 parts(static_cast<unsigned>(args.max_parts), kv_heads, rows);
  WL_RETURN_IF_ERROR(LaunchEarly(kernel->function, parts, kDecodeThreads, kernel->shared_bytes,
                                 args, true, stream, "attention of a decode step"));
  if (args.max_parts == 1) return absl::OkStatus();  // It is whole already.
  const dim3 heads(static_cast<unsigned>(job.n_head), rows);
  return LaunchEarly(kernel->join, heads, kJoinThreads, 0, args, true, stream,
                     "joining the parts of a decode step");
}

}  // namespace warpline::cuda
