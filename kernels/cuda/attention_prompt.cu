#include "kernels/cuda/attention_prompt.h"

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention_prompt.cuh"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device.h"

namespace warpline::cuda {
namespace {

struct PromptKernel {
  int head_dim;
  int shared_bytes;
  const void* function;
};

template <int kDim>
constexpr PromptKernel MakeKernel() {
  return {.head_dim = kDim,
          .shared_bytes = PromptShape<kDim>::kSharedBytes,
          .function = reinterpret_cast<const void*>(&PromptAttention<kDim>)};
}

const PromptKernel kKernels[] = {MakeKernel<64>(), MakeKernel<128>(), MakeKernel<256>()};

const PromptKernel* FindKernel(int head_dim) {
  for (const PromptKernel& kernel : kKernels) {
    if (kernel.head_dim == head_dim) return &kernel;
  }
  return nullptr;
}

constexpr int kExpandThreads = 256;

// One block a page and KV head. A thread turns 8 values into a piece of 16 bytes; a warp writes
// whole rows.
__global__ void __launch_bounds__(kExpandThreads)
    ExpandPage(const __grid_constant__ ExpandArgs args) {
  const KvLayout& layout = args.cache.layout;
  const int page = args.first_page + blockIdx.x;
  const int kv_head = blockIdx.y;
  const int pieces = layout.head_dim / 8;
  for (int is_value = 0; is_value < 2; ++is_value) {
    const uint8_t* const from =
        args.cache.data + BlockOffset(args.cache, args.pages[page], kv_head, is_value != 0);
    uint8_t* const to = args.out.data + BlockOffset(args.out, page, kv_head, is_value != 0);
#pragma unroll 4
    for (int i = threadIdx.x; i < kPageTokens * pieces; i += kExpandThreads) {
      const int token = i / pieces;
      const int dim = i % pieces * 8;
      const uint2 raw = *reinterpret_cast<const uint2*>(from + ValueOffset(layout, token, dim));
      const uint32_t scale = Twice(*reinterpret_cast<const uint16_t*>(
          from + ScaleOffset(layout, token, dim / layout.group)));
      const uint32_t low = raw.x ^ kSignBits;
      const uint32_t high = raw.y ^ kSignBits;
      *reinterpret_cast<uint4*>(to + ValueOffset(args.out.layout, token, dim)) = make_uint4(
          Mul2(HalvesOfTurned(low, kBytes01), scale), Mul2(HalvesOfTurned(low, kBytes23), scale),
          Mul2(HalvesOfTurned(high, kBytes01), scale), Mul2(HalvesOfTurned(high, kBytes23), scale));
    }
  }
}

}  // namespace

bool HasPromptKernel(const KvLayout& layout) {
  return layout.type != KvType::kF32 && FindKernel(layout.head_dim) != nullptr;
}

absl::Status PreparePrompt(const DeviceLimits& limits) {
  if (limits.capability != 90) {
    return absl::FailedPreconditionError(
        absl::StrCat("is code for sm_90, device ", limits.ordinal, " is sm_", limits.capability));
  }
  RuntimeDriver driver;
  for (const PromptKernel& kernel : kKernels) {
    WL_RETURN_IF_ERROR(driver.SetSharedLimit(kernel.function, kernel.shared_bytes));
    WL_ASSIGN_OR_RETURN(const int blocks, driver.ResidentBlocks(kernel.function, kPromptThreads,
                                                                kernel.shared_bytes));
    if (blocks < 1) return absl::FailedPreconditionError("does not fit a multiprocessor");
  }
  return absl::OkStatus();
}

absl::Status EnqueuePrompt(const PromptArgs& args, cudaStream_t stream) {
  const AttentionJob& job = args.job;
  const PromptKernel* const kernel = FindKernel(job.cache.layout.head_dim);
  if (kernel == nullptr) return absl::InternalError("no kernel for this attention");
  const int64_t group = job.n_head / job.cache.n_head_kv;
  const int64_t tiles = (args.row_count * group + kPromptRows - 1) / kPromptRows;
  PromptArgs copy = args;
  void* parameters[] = {&copy};
  return CudaStatus(
      cudaLaunchKernel(kernel->function, dim3(static_cast<unsigned>(tiles * job.cache.n_head_kv)),
                       dim3(kPromptThreads), parameters, static_cast<size_t>(kernel->shared_bytes),
                       stream),
      "attention of a prompt");
}

absl::Status ExpandPages(const ExpandArgs& args, cudaStream_t stream) {
  if (args.page_count <= args.first_page) return absl::OkStatus();
  const dim3 grid(static_cast<unsigned>(args.page_count - args.first_page),
                  static_cast<unsigned>(args.cache.n_head_kv));
  ExpandPage<<<grid, kExpandThreads, 0, stream>>>(args);
  return LaunchStatus("expanding int8 keys and values");
}

}  // namespace warpline::cuda
