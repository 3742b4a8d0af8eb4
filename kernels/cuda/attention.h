// Causal attention of a step's rows over their sequences' pages. Three paths, chosen by what the
// layer is and by the kind of step alone, so a row's bits depend neither on the other rows nor on
// how a prompt was cut:
//   prompt:  wgmma over blocks of whole pages at absolute positions,
//   decode:  keys split at absolute positions into parts whose length follows from the context
//            alone, joined in their order,
//   generic: one warp for each row and head; any head size, group and type.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/raii.h"
#include "kernels/cuda/step_view.h"

namespace warpline::cuda {

// One attention as kernels see it. All pointers are device memory.
struct AttentionJob {
  StepView step;
  const float* q = nullptr;  // [rows, n_head * head_dim]
  int64_t q_stride = 0;
  float* out = nullptr;  // [rows, n_head * head_dim]
  int64_t out_stride = 0;
  uint16_t* halves = nullptr;   // decode path: `out` as halves too, or null
  const float* gate = nullptr;  // [rows, n_head * head_dim] or null: out times its sigmoid
  int64_t gate_stride = 0;
  int32_t n_head = 0;
  float scale = 0;
  int32_t window = 0;  // > 0: a row sees only the last `window` positions, itself included
  KvView cache;
};

enum class AttentionPath { kGeneric, kPrompt, kDecode };

// Attention on one device, which must be current. Holding one is the proof that its kernels may be
// launched there. Used by one thread and one stream.
class PagedAttention {
 public:
  static absl::StatusOr<PagedAttention> Create(const Device& device);

  struct ReserveArgs {
    KvType kv_type = KvType::kF16;
    int n_head = 0;
    int n_head_kv = 0;
    int head_dim = 0;
    int64_t max_decode_rows = 0;
    int64_t max_context = 0;
  };
  // Scratch for layers of this shape; call for each shape before the first Run, never while a step
  // is recorded.
  absl::Status Reserve(const ReserveArgs& args);

  // What its paths are on this device, for the log: "prompt wgmma, decode mma_sync", or "generic"
  // with the reason.
  std::string Describe() const;
  // Why layers of this shape take the generic path, in words; empty where they do not.
  std::string WhyGeneric(const ReserveArgs& args) const;

  // Grows with what Reserve has allocated.
  int64_t scratch_bytes() const { return decode_scratch_.bytes() + expanded_.bytes(); }

  // Which path such layers take on this device.
  AttentionPath PathOf(bool is_decode, const KvLayout& layout, int n_head, int n_head_kv) const;

  // Asynchronous on `stream`. What the step's tables and earlier steps' pages are made by must have
  // ended before the step's first kernel starts: decode reads them while the kernel before it
  // still runs. A decode step that is recorded needs a step.max_context that holds
  // for all its replays; a larger one than needed starts blocks that end at once. InvalidArgument
  // beyond what was reserved.
  absl::Status Run(const AttentionJob& job, cudaStream_t stream) const;

 private:
  PagedAttention(absl::Status prompt_status, absl::Status decode_status)
      : prompt_status_(std::move(prompt_status)), decode_status_(std::move(decode_status)) {}
  absl::Status RunPrompt(const AttentionJob& job, cudaStream_t stream) const;
  absl::Status RunDecode(const AttentionJob& job, cudaStream_t stream) const;

  // Why this device lacks a path.
  absl::Status prompt_status_, decode_status_;
  DeviceBuffer decode_scratch_;
  DeviceBuffer expanded_;  // one sequence's int8 pages as halves
};

}  // namespace warpline::cuda
