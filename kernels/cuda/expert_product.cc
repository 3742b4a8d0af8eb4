#include "kernels/cuda/expert_product.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/combine.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/few_routing.h"
#include "kernels/cuda/gather_tiles.h"
#include "kernels/cuda/packed_layout.h"

namespace warpline::cuda {
namespace {

// Hidden values are stored as halves times this: silu(gate) * up reaches further than its operands.
constexpr float kHiddenScale = 1.0f / 16;

// Bytes before the runs that are pending: two counters, and room so that the runs are aligned.
constexpr int64_t kPendingHead = 16;

bool IsMixed(const ExpertWeights& weights) { return weights.gate_up.experts == 0; }

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertProduct>> ExpertProduct::Create(const ExpertKernels& kernels,
                                                                     const ExpertPlan& plan) {
  if (plan.experts < 1 || plan.experts > kMaxExperts || plan.slots < 1 ||
      plan.slots > plan.experts || plan.n_embd < 1 || plan.n_ff < 1 || plan.max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot plan for ", plan.slots, " of ", plan.experts, " experts of ",
                     plan.n_embd, " to ", plan.n_ff, " values, ", plan.max_tokens, " tokens"));
  }
  WL_RETURN_IF_ERROR(kernels.device().MakeCurrent());
  std::unique_ptr<ExpertProduct> product(new ExpertProduct(kernels, plan));
  WL_RETURN_IF_ERROR(product->Allocate());
  return product;
}

absl::Status ExpertProduct::Allocate() {
  const int64_t pairs = int64_t{plan_.max_tokens} * plan_.slots;
  const int64_t rows = RowSpaceRows(pairs, plan_.experts);
  const int64_t slack = int64_t{kSlackRowGroups} * kTileBytes;
  row_groups_ = static_cast<int32_t>(rows / kTileRows);
  const auto allocate = [this](DeviceBuffer& buffer, int64_t bytes) -> absl::Status {
    WL_ASSIGN_OR_RETURN(buffer, DeviceBuffer::Create(bytes));
    workspace_bytes_ += bytes;
    // Row space that nobody writes must not look like flags or factors.
    return CudaStatus(cudaMemset(buffer.as(), 0, static_cast<size_t>(bytes)),
                      "clearing the workspace");
  };
  WL_RETURN_IF_ERROR(allocate(start_, 4 * (int64_t{plan_.experts} + 1)));
  WL_RETURN_IF_ERROR(allocate(count_, int64_t{4} * plan_.experts));
  WL_RETURN_IF_ERROR(allocate(row_token_, 4 * rows));
  WL_RETURN_IF_ERROR(allocate(slot_row_, 4 * pairs));
  WL_RETURN_IF_ERROR(allocate(row_weight_, 4 * rows));
  WL_RETURN_IF_ERROR(allocate(row_scale_, 4 * rows));
  WL_ASSIGN_OR_RETURN(bad_ids_, PinnedBuffer::Create(sizeof(int32_t)));
  *bad_ids_.as<int32_t>() = 0;
  WL_RETURN_IF_ERROR(allocate(scratch_, kRoutingScratchBytes));
  WL_RETURN_IF_ERROR(allocate(x_tiles_, 2 * rows * RoundUp(plan_.n_embd, kPadK) + slack));
  WL_RETURN_IF_ERROR(allocate(hidden_, 2 * rows * RoundUp(plan_.n_ff, kPadK) + slack));
  WL_RETURN_IF_ERROR(allocate(overflow_, rows));
  WL_RETURN_IF_ERROR(
      allocate(pending_, kPendingHead + int64_t{plan_.max_tokens} * Pending().run_count));
  WL_RETURN_IF_ERROR(
      allocate(exact_scratch_, 4 * kExactBlocks * ExactScratchFloats(plan_.n_embd, plan_.n_ff)));
  return allocate(y_, 2 * rows * plan_.n_embd);
}

absl::StatusOr<const KernelSet*> ExpertProduct::SetOf(Op op, QuantType type) const {
  const bool is_prompt = op == Op::kGateUp || op == Op::kPlain;
  if (plan_.policy.has_value() && is_prompt) {
    return kernels_.choices().For(op, type, *plan_.policy);
  }
  return kernels_.choices().For(op, type);
}

absl::Status ExpertProduct::PrepareProduct(Op op, const PackedExperts& weights) {
  WL_ASSIGN_OR_RETURN(const KernelSet* const set, SetOf(op, weights.type));
  const ListKey key = {op, weights.type, set->policy, weights.row_blocks};
  if (lists_.count(key) > 0) return absl::OkStatus();
  WL_ASSIGN_OR_RETURN(ItemLists items,
                      ItemLists::Create(*set, weights, int64_t{plan_.max_tokens} * plan_.slots));
  lists_.emplace(key, std::move(items));
  return absl::OkStatus();
}

absl::Status ExpertProduct::Prepare(const ExpertWeights& weights) {
  if (weights.down.experts != plan_.experts || weights.down.rows != plan_.n_embd) {
    return absl::InvalidArgumentError("expert weights are not of the planned shape");
  }
  WL_RETURN_IF_ERROR(PrepareProduct(Op::kPlain, weights.down));
  if (IsMixed(weights)) {
    WL_RETURN_IF_ERROR(PrepareProduct(Op::kPlain, weights.gate));
    WL_RETURN_IF_ERROR(PrepareProduct(Op::kPlain, weights.up));
    if (gate_up_.bytes() > 0) return absl::OkStatus();
    const int64_t bytes = int64_t{2} * 4 * kTileRows * row_groups_ * plan_.n_ff;
    WL_ASSIGN_OR_RETURN(gate_up_, DeviceBuffer::Create(bytes));
    workspace_bytes_ += bytes;
    return absl::OkStatus();
  }
  WL_RETURN_IF_ERROR(PrepareProduct(Op::kGateUp, weights.gate_up));
  WL_RETURN_IF_ERROR(PrepareProduct(Op::kFewGateUp, weights.gate_up));
  return PrepareProduct(Op::kFewPlain, weights.down);
}

ExpertRows ExpertProduct::Rows() const {
  return {start_.as<int32_t>(), count_.as<int32_t>(), plan_.experts};
}

absl::StatusOr<ExpertProduct::Chosen> ExpertProduct::Choose(Op op,
                                                            const PackedExperts& weights) const {
  WL_ASSIGN_OR_RETURN(const KernelSet* const set, SetOf(op, weights.type));
  const auto items = lists_.find({op, weights.type, set->policy, weights.row_blocks});
  if (items == lists_.end()) return absl::InternalError("expert weights were not prepared");
  return Chosen{set, &items->second};
}

absl::Status ExpertProduct::Multiply(Op op, const PackedExperts& weights, const GroupedArgs& args,
                                     cudaStream_t stream) const {
  WL_ASSIGN_OR_RETURN(const Chosen chosen, Choose(op, weights));
  WL_RETURN_IF_ERROR(chosen.items->Fill(Rows(), stream));
  return kernels_.Multiply(*chosen.set, weights, *chosen.items, args, stream);
}

RoutingArgs ExpertProduct::RoutingOf(const ExpertStep& step) const {
  return {.expert_ids = step.expert_ids,
          .weights = step.weights,
          .tokens = step.tokens,
          .slots = plan_.slots,
          .experts = plan_.experts,
          .start = start_.as<int32_t>(),
          .count = count_.as<int32_t>(),
          .row_token = row_token_.as<int32_t>(),
          .slot_row = slot_row_.as<int32_t>(),
          .row_weight = row_weight_.as<float>(),
          .bad_ids = bad_ids_.as<int32_t>(),
          .scratch = scratch_.as<int32_t>()};
}

absl::Status ExpertProduct::ClearOverflow(cudaStream_t stream) const {
  return CudaStatus(
      cudaMemsetAsync(overflow_.as(), 0, static_cast<size_t>(overflow_.bytes()), stream),
      "clearing overflow flags");
}

absl::Status ExpertProduct::Run(const ExpertWeights& weights, const ExpertStep& step,
                                cudaStream_t stream) {
  if (step.tokens < 0 || step.tokens > plan_.max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", step.tokens, " tokens, planned for ", plan_.max_tokens));
  }
  if (step.tokens == 0) return absl::OkStatus();
  // Mixed types take the path of prompts in both kinds of step.
  WL_RETURN_IF_ERROR(step.kind == StepKind::kDecode && !IsMixed(weights)
                         ? RunDecode(weights, step, stream)
                         : RunPrompt(weights, step, stream));
  const SlotSums sums = {.combine = {.y = y_.as(),
                                     .slot_row = slot_row_.as<int32_t>(),
                                     .tokens = step.tokens,
                                     .slots = plan_.slots,
                                     .columns = plan_.n_embd,
                                     .shared = step.shared,
                                     .residual = step.residual,
                                     .out = step.out,
                                     .overflow = overflow_.as(),
                                     .pending = Pending(),
                                     .is_early = kernels_.device().starts_early()},
                         .exact = ExactOf(weights, step)};
  if (step.sums_later == nullptr) return MakeSums(sums, stream);
  *step.sums_later = sums;
  return absl::OkStatus();
}

PendingRuns ExpertProduct::Pending() const {
  const int32_t run_columns = RunColumns(plan_.n_embd);
  return {.any = pending_.as<int32_t>(),
          .runs = pending_.as() + kPendingHead,
          .run_count = plan_.n_embd / run_columns,
          .run_columns = run_columns};
}

ExactMatrix ExpertProduct::ExactOf(const PackedExperts& weights) const {
  const DeviceBuffer& table = kernels_.TableOf(weights.type);
  return {.type = weights.type,
          .packed = weights.data.as(),
          .expert_bytes = weights.expert_bytes,
          .row_blocks = weights.row_blocks,
          .k = weights.k,
          .table = table.as(),
          .table_bytes = static_cast<int32_t>(table.bytes()),
          .weight_scale = weights.weight_scale};
}

ExactExpertsArgs ExpertProduct::ExactOf(const ExpertWeights& weights,
                                        const ExpertStep& step) const {
  ExactExpertsArgs args = {.down = ExactOf(weights.down),
                           .x = step.exact_x,
                           .x_stride = step.exact_stride,
                           .token_scale = step.x_scale,
                           .expert_ids = step.expert_ids,
                           .weights = step.weights,
                           .slot_row = slot_row_.as<int32_t>(),
                           .overflow = overflow_.as(),
                           .y = y_.as<uint16_t>(),
                           .tokens = step.tokens,
                           .slots = plan_.slots,
                           .experts = plan_.experts,
                           .n_embd = plan_.n_embd,
                           .n_ff = plan_.n_ff,
                           .shared = step.shared,
                           .residual = step.residual,
                           .out = step.out,
                           .pending = Pending(),
                           .scratch = exact_scratch_.as<float>(),
                           .starts_early = kernels_.device().starts_early()};
  args.gate = ExactOf(IsMixed(weights) ? weights.gate : weights.gate_up);
  if (IsMixed(weights)) args.up = ExactOf(weights.up);
  if (args.x == nullptr && step.x_is_float) {
    args.x = static_cast<const float*>(step.x);
    args.x_stride = plan_.n_embd;
  } else if (args.x == nullptr) {
    args.x_halves = static_cast<const uint16_t*>(step.x);
  }
  return args;
}

absl::Status ExpertProduct::RunPrompt(const ExpertWeights& weights, const ExpertStep& step,
                                      cudaStream_t stream) {
  if (step.top.logits != nullptr) WL_RETURN_IF_ERROR(TopExperts(step.top, stream));
  WL_RETURN_IF_ERROR(Route(RoutingOf(step), stream));
  WL_RETURN_IF_ERROR(ClearOverflow(stream));
  GatherArgs gather = {.x = step.x,
                       .x_is_float = step.x_is_float,
                       .tokens = step.tokens,
                       .k = plan_.n_embd,
                       .slot_row = slot_row_.as<int32_t>(),
                       .slots = plan_.slots,
                       .tiles = x_tiles_.as(),
                       .row_groups = row_groups_,
                       .row_scale = row_scale_.as<float>()};
  if (!step.x_is_float) {  // Halves are taken as they are, row by row, which is faster.
    gather.row_token = row_token_.as<int32_t>();
    gather.row_end = start_.as<int32_t>() + plan_.experts;
    gather.token_scale = step.x_scale;
  }
  WL_RETURN_IF_ERROR(GatherTiles(gather, stream));
  WL_RETURN_IF_ERROR(HiddenTiles(weights, step, stream));
  GroupedArgs args;
  args.x_tiles = hidden_.as();
  args.x_row_groups = row_groups_;
  args.weight_scale = 1 / kHiddenScale;
  args.y = y_.as();
  args.row_weight = row_weight_.as<float>();
  return Multiply(Op::kPlain, weights.down, args, stream);
}

absl::Status ExpertProduct::HiddenTiles(const ExpertWeights& weights, const ExpertStep& step,
                                        cudaStream_t stream) {
  GroupedArgs args;
  args.x_tiles = x_tiles_.as();
  args.x_row_groups = row_groups_;
  args.row_scale = row_scale_.as<float>();
  if (!IsMixed(weights)) {
    args.h_tiles = hidden_.as();
    args.h_row_groups = row_groups_;
    args.output_scale = kHiddenScale;
    args.overflow = overflow_.as();
    return Multiply(Op::kGateUp, weights.gate_up, args, stream);
  }
  float* const gate = gate_up_.as<float>();
  float* const up = gate + int64_t{kTileRows} * row_groups_ * plan_.n_ff;
  args.y_is_float = true;
  args.y = gate;
  WL_RETURN_IF_ERROR(Multiply(Op::kPlain, weights.gate, args, stream));
  args.y = up;
  WL_RETURN_IF_ERROR(Multiply(Op::kPlain, weights.up, args, stream));
  return SwiGluTiles({.gate = gate,
                      .up = up,
                      .slot_row = slot_row_.as<int32_t>(),
                      .pairs = step.tokens * plan_.slots,
                      .columns = plan_.n_ff,
                      .output_scale = kHiddenScale,
                      .tiles = hidden_.as(),
                      .row_groups = row_groups_,
                      .overflow = overflow_.as()},
                     stream);
}

absl::Status ExpertProduct::RunDecode(const ExpertWeights& weights, const ExpertStep& step,
                                      cudaStream_t stream) {
  if (step.x_is_float || plan_.n_embd % kPadK != 0) {
    return absl::InvalidArgumentError(
        "decode steps take halves, a multiple of 128 values to a token");
  }
  WL_ASSIGN_OR_RETURN(const Chosen first, Choose(Op::kFewGateUp, weights.gate_up));
  WL_ASSIGN_OR_RETURN(const Chosen second, Choose(Op::kFewPlain, weights.down));
  WL_RETURN_IF_ERROR(RouteDecode(step, *first.items, stream));
  GroupedArgs args;
  args.x_rows = static_cast<const uint16_t*>(step.x);
  args.ids = row_token_.as<int32_t>();
  args.row_scale = step.x_scale != nullptr ? row_scale_.as<float>() : nullptr;
  args.h_rows = hidden_.as<uint16_t>();
  args.output_scale = kHiddenScale;
  args.overflow = overflow_.as();
  WL_RETURN_IF_ERROR(kernels_.Multiply(*first.set, weights.gate_up, *first.items, args, stream));
  args = {};
  args.x_rows = hidden_.as<uint16_t>();
  args.weight_scale = 1 / kHiddenScale;
  args.y = y_.as();
  args.row_weight = row_weight_.as<float>();
  // Where both are tiles of few rows, those of the first are the second's too; see few_rows.cuh.
  if (first.set->policy == second.set->policy && second.items->off() == nullptr) {
    return kernels_.Multiply(*second.set, weights.down, *first.items, args, stream);
  }
  return Multiply(Op::kFewPlain, weights.down, args, stream);
}

absl::Status ExpertProduct::RouteDecode(const ExpertStep& step, const ItemLists& items,
                                        cudaStream_t stream) const {
  RoutingArgs routing = RoutingOf(step);
  routing.token_scale = step.x_scale;
  routing.row_scale = row_scale_.as<float>();
  if (items.off() == nullptr && int64_t{step.tokens} * plan_.slots <= kFewRoutingPairs) {
    return RouteFew({.routing = routing,
                     .tiles = items.few_tiles(overflow_.as()),
                     .top = step.top,
                     .is_early = kernels_.device().starts_early()},
                    stream);
  }
  if (step.top.logits != nullptr) WL_RETURN_IF_ERROR(TopExperts(step.top, stream));
  WL_RETURN_IF_ERROR(Route(routing, stream));
  WL_RETURN_IF_ERROR(ClearOverflow(stream));
  return items.Fill(Rows(), stream);
}

}  // namespace warpline::cuda
