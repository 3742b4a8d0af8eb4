// Keys and values of one layer in device memory.
#pragma once

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/raii.h"

namespace warpline::cuda {

class CudaKvCache final : public KvCache {
 public:
  // On the current device, all zero. InvalidArgument for sizes out of range, ResourceExhausted when
  // the device has no memory left.
  static absl::StatusOr<CudaKvCache> Create(const KvCacheArgs& args) {
    WL_ASSIGN_OR_RETURN(const int64_t bytes, Bytes(args));
    WL_ASSIGN_OR_RETURN(DeviceBuffer memory, DeviceBuffer::Create(bytes));
    if (bytes > 0) {
      WL_RETURN_IF_ERROR(CudaStatus(cudaMemset(memory.as(), 0, static_cast<size_t>(bytes)),
                                    "clearing a KV cache"));
    }
    return CudaKvCache(args, std::move(memory));
  }
  // What such a cache takes on the device.
  static absl::StatusOr<int64_t> Bytes(const KvCacheArgs& args) {
    if (args.head_dim < 1 || args.head_dim > kMaxHeadDim || args.n_head_kv < 1 ||
        args.page_count < 0) {
      return absl::InvalidArgumentError(absl::StrCat("a KV cache of ", args.page_count, " pages, ",
                                                     args.n_head_kv, " heads of size ",
                                                     args.head_dim, " (1 to ", kMaxHeadDim, ")"));
    }
    if (args.type == KvType::kQ8_0 && args.head_dim % 8 != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "an int8 KV cache needs a head size that is a multiple of 8, not ", args.head_dim));
    }
    return 2 * args.page_count * args.n_head_kv *
           MakeKvLayout(args.type, args.head_dim).block_bytes;
  }

  const KvCacheArgs& args() const { return args_; }
  KvView view() const {
    return {.layout = MakeKvLayout(args_.type, args_.head_dim),
            .n_head_kv = args_.n_head_kv,
            .data = memory_.as()};
  }

 private:
  CudaKvCache(const KvCacheArgs& args, DeviceBuffer memory)
      : args_(args), memory_(std::move(memory)) {}
  KvCacheArgs args_;
  DeviceBuffer memory_;
};

}  // namespace warpline::cuda
