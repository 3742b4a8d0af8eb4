// The expert layers of one device: from routed tokens to their combined outputs. Owns the memory
// between the kernels, planned once for the largest step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "kernels/cuda/exact_experts.h"
#include "kernels/cuda/expert_kernels.h"
#include "kernels/cuda/packed_experts.h"
#include "kernels/cuda/raii.h"
#include "kernels/cuda/routing.h"
#include "kernels/cuda/slot_sums.h"
#include "kernels/cuda/top_experts.h"

namespace warpline::cuda {

// The experts of one layer. Gate and up of one type are one packed matrix in `gate_up`; of two
// types they are plain ones, `gate_up` is empty.
struct ExpertWeights {
  PackedExperts gate_up;
  PackedExperts gate;
  PackedExperts up;
  PackedExperts down;
};

// What the workspace is planned for.
struct ExpertPlan {
  int32_t experts = 0;
  int32_t slots = 0;  // experts of a token
  int32_t n_embd = 0;
  int32_t n_ff = 0;
  int32_t max_tokens = 0;  // of a step
  // Of the prompt kernels one policy only, for comparing; else the best that the device has.
  absl::optional<Policy> policy;
};

// The path of a step is chosen by its kind alone, never by how many rows an expert got: a token's
// bits must not depend on who shares the step.
enum class StepKind { kPrompt, kDecode };

// One step of one layer; device memory.
struct ExpertStep {
  StepKind kind = StepKind::kPrompt;
  // [tokens][n_embd], floats or halves. Decode steps take halves, and n_embd is a multiple of 128.
  const void* x = nullptr;
  bool x_is_float = true;
  const float* x_scale = nullptr;  // [tokens] or null (1): undoes a scaling of halves
  // The same rows as floats, exact_stride apart, or null: what tokens are computed again from. Not
  // `out`.
  const float* exact_x = nullptr;
  int64_t exact_stride = 0;
  const int32_t* expert_ids = nullptr;  // [tokens][slots], most probable first
  const float* weights = nullptr;       // [tokens][slots], routing weights
  // Unless its logits are null: experts are chosen first; its results are the two above.
  TopExpertsArgs top;
  int32_t tokens = 0;
  const float* shared = nullptr;    // [tokens][n_embd] or null: the shared expert's output
  const float* residual = nullptr;  // [tokens][n_embd] or null
  float* out = nullptr;             // [tokens][n_embd]; may be `residual`
  // Unless null: takes what is left to do, the sum over the slots; valid until the next step.
  SlotSums* sums_later = nullptr;
};

class ExpertProduct {
 public:
  // Allocates the workspace on the device of `kernels`, which must be current and outlive it.
  // ResourceExhausted when the device has no room.
  static absl::StatusOr<std::unique_ptr<ExpertProduct>> Create(const ExpertKernels& kernels,
                                                               const ExpertPlan& plan);

  // Makes room for the tiles of a layer with such weights.
  // Layers of equal types and shapes share it. FailedPrecondition where no kernel takes the types.
  absl::Status Prepare(const ExpertWeights& weights);

  // out = residual + the sum over slots of weight * down(silu(gate(x)) * up(x)) + shared. Rows of
  // which a value does not fit into a half are computed again in single precision. Only for
  // prepared weights. Asynchronous on `stream`; may be captured in a graph.
  absl::Status Run(const ExpertWeights& weights, const ExpertStep& step, cudaStream_t stream);

  // Device memory of the workspace.
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // Whether a step that has ended was given an expert id that names no expert.
  bool has_bad_ids() const { return *bad_ids_.as<volatile int32_t>() != 0; }

 private:
  // Tiles depend on the kernels (operation, type, policy) and the number of row blocks.
  using ListKey = std::tuple<Op, QuantType, Policy, int32_t>;
  struct Chosen {
    const KernelSet* set;
    const ItemLists* items;
  };

  ExpertProduct(const ExpertKernels& kernels, const ExpertPlan& plan)
      : kernels_(kernels), plan_(plan) {}

  absl::Status Allocate();
  absl::Status PrepareProduct(Op op, const PackedExperts& weights);
  absl::StatusOr<const KernelSet*> SetOf(Op op, QuantType type) const;
  absl::StatusOr<Chosen> Choose(Op op, const PackedExperts& weights) const;
  RoutingArgs RoutingOf(const ExpertStep& step) const;
  absl::Status ClearOverflow(cudaStream_t stream) const;
  PendingRuns Pending() const;
  ExactMatrix ExactOf(const PackedExperts& weights) const;
  ExactExpertsArgs ExactOf(const ExpertWeights& weights, const ExpertStep& step) const;
  absl::Status RouteDecode(const ExpertStep& step, const ItemLists& items,
                           cudaStream_t stream) const;
  absl::Status RunPrompt(const ExpertWeights& weights, const ExpertStep& step, cudaStream_t stream);
  absl::Status HiddenTiles(const ExpertWeights& weights, const ExpertStep& step,
                           cudaStream_t stream);
  absl::Status RunDecode(const ExpertWeights& weights, const ExpertStep& step, cudaStream_t stream);
  absl::Status Multiply(Op op, const PackedExperts& weights, const GroupedArgs& args,
                        cudaStream_t stream) const;
  ExpertRows Rows() const;

  const ExpertKernels& kernels_;
  ExpertPlan plan_;
  std::map<ListKey, ItemLists> lists_;
  int64_t workspace_bytes_ = 0;
  int32_t row_groups_ = 0;
  DeviceBuffer start_;
  DeviceBuffer count_;
  DeviceBuffer row_token_;
  DeviceBuffer slot_row_;
  DeviceBuffer row_weight_;
  DeviceBuffer row_scale_;
  PinnedBuffer bad_ids_;  // written by the device, so that reading it costs no copy
  DeviceBuffer scratch_;
  DeviceBuffer x_tiles_;
  DeviceBuffer hidden_;    // halves: tiles of prompt steps, rows of decode steps
  DeviceBuffer gate_up_;   // floats [2][rows][n_ff], made by Prepare where types are mixed
  DeviceBuffer overflow_;  // [rows]
  DeviceBuffer y_;         // halves [rows][n_embd]
  DeviceBuffer pending_;   // see PendingRuns
  DeviceBuffer exact_scratch_;
};

}  // namespace warpline::cuda
