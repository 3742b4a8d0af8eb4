// Mixture of experts of the CUDA back end: routing, the experts' products, their sum.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/convert_rows.h"
#include "kernels/cuda/cuda_backend_impl.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/float_product.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/router.h"
#include "kernels/cuda/top_experts.h"

namespace warpline::cuda {
namespace {

FloatRows Packed(float* data, int64_t row_count, int64_t width) {
  return {data, row_count, width, width};
}

}  // namespace

absl::StatusOr<CudaBackend::MoeJob> CudaBackend::CheckExperts(const MoeFfnArgs& args) const {
  MoeJob job;
  WL_ASSIGN_OR_RETURN(job.router, CheckMatrix("router", args.router, -1, -1, 1));
  const int64_t n_embd = job.router.weight->input_width();
  const int64_t experts = job.router.weight->output_width();
  WL_ASSIGN_OR_RETURN(const CheckedMatrix down,
                      CheckMatrix("experts' down", {args.down}, -1, n_embd, experts));
  job.down = down.weight;
  job.n_ff = down.weight->input_width();
  if (args.gate_up != nullptr) {
    WL_ASSIGN_OR_RETURN(const CheckedMatrix fused, CheckMatrix("experts' gate_up", {args.gate_up},
                                                               n_embd, 2 * job.n_ff, experts));
    job.gate = fused.weight;
  } else {
    WL_ASSIGN_OR_RETURN(const CheckedMatrix gate,
                        CheckMatrix("experts' gate", {args.gate}, n_embd, job.n_ff, experts));
    WL_ASSIGN_OR_RETURN(const CheckedMatrix up,
                        CheckMatrix("experts' up", {args.up}, n_embd, job.n_ff, experts));
    job.gate = gate.weight;
    job.up = up.weight;
  }
  if (args.used_count <= 0 || args.used_count > experts) {
    return absl::InvalidArgumentError(absl::StrCat(args.used_count, " of ", experts, " experts"));
  }
  const auto is_float = [](const CudaWeight* weight) {
    return weight != nullptr && weight->type() == QuantType::kF32;
  };
  job.is_float = is_float(job.gate) || is_float(job.up) || is_float(job.down) ||
                 job.gate->has_expert_scales() ||
                 (job.up != nullptr && job.up->has_expert_scales());
  return job;
}

absl::StatusOr<CudaBackend::MoeJob> CudaBackend::CheckMoe(const MoeFfnArgs& args) const {
  WL_ASSIGN_OR_RETURN(MoeJob job, CheckExperts(args));
  const int64_t n_embd = job.router.weight->input_width();
  WL_ASSIGN_OR_RETURN(job.in, CheckRows("moe input", args.in, -1, n_embd));
  WL_ASSIGN_OR_RETURN(job.out, CheckRows("moe output", args.out, job.in.row_count, n_embd));
  return job;
}

absl::Status CudaBackend::PrepareMoe(const MoeFfnArgs& args) {
  WL_ASSIGN_OR_RETURN(const MoeJob job, CheckExperts(args));
  if (!job.is_float) return PackLayer(job).status();
  for (const CudaWeight* const weight : {job.gate, job.up, job.down}) {
    if (weight == nullptr) continue;
    WL_RETURN_IF_ERROR(weight->Floats(grids_.grids(), stream_.get()).status());
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::ScoreExperts(const MoeFfnArgs& args, MoeJob& job) {
  const int64_t rows = job.in.row_count;
  const int64_t experts = job.router.weight->output_width();
  WL_ASSIGN_OR_RETURN(float* const logits, logits_.Get<float>(MostRows(rows) * experts));
  WL_ASSIGN_OR_RETURN(int32_t* const ids,
                      expert_ids_.Get<int32_t>(MostRows(rows) * args.used_count));
  WL_ASSIGN_OR_RETURN(float* const weights,
                      expert_weights_.Get<float>(MostRows(rows) * args.used_count));
  WL_RETURN_IF_ERROR(ScoreRows(job, logits));
  job.top = {.logits = logits,
             .rows = static_cast<int32_t>(rows),
             .experts = static_cast<int32_t>(experts),
             .used = args.used_count,
             .renormalise = args.renormalise,
             .scales = job.down->scales_on_device(),
             .expert_ids = ids,
             .weights = weights};
  return absl::OkStatus();
}

// The router's products, together with the norm before them where it was left for that.
absl::Status CudaBackend::ScoreRows(const MoeJob& job, float* logits) {
  const CudaWeight& router = *job.router.weight;
  const int64_t experts = router.output_width();
  const bool follows_norm = deferred_norm_.has_value() && deferred_norm_->out.data == job.in.data &&
                            deferred_norm_->out.stride == job.in.stride &&
                            deferred_norm_->out.width == job.in.width &&
                            deferred_norm_->out.row_count == job.in.row_count;
  // Each block of the router norms the rows by itself, while one of them stores them.
  if (!follows_norm || Overlap(deferred_norm_->in, job.in) || !CanRoute(*deferred_norm_) ||
      job.router.bias != nullptr || router.scale() != 1) {
    WL_RETURN_IF_ERROR(RunDeferred());
    return products_->RunExact({.weight = &router,
                                .bias = job.router.bias,
                                .in = job.in,
                                .out = Packed(logits, job.in.row_count, experts),
                                .is_decode = is_decode_},
                               stream_.get());
  }
  RouterArgs args = {
      .norm = *deferred_norm_, .experts = static_cast<int32_t>(experts), .logits = logits};
  deferred_norm_.reset();
  WL_ASSIGN_OR_RETURN(args.weights, router.Floats(grids_.grids(), stream_.get()));
  return Router(args, stream_.get());
}

absl::Status CudaBackend::RunSharedExpert(const MoeFfnArgs& args, MoeJob& job) {
  const int64_t rows = job.in.row_count;
  WL_ASSIGN_OR_RETURN(
      const CheckedMatrix input,
      CheckMatrix("shared expert's gate", {args.shared_gate_input}, job.in.width, 1, 1));
  WL_ASSIGN_OR_RETURN(FfnJob ffn,
                      CheckFfn(args.shared_gate, args.shared_up, args.shared_down, job.in));
  if (ffn.down.weight->output_width() != job.in.width) {
    return absl::InvalidArgumentError("the shared expert has another width than its layer");
  }
  WL_ASSIGN_OR_RETURN(float* const gate, shared_gate_.Get<float>(MostRows(rows)));
  WL_ASSIGN_OR_RETURN(float* const out, shared_.Get<float>(MostRows(rows) * job.in.width));
  WL_RETURN_IF_ERROR(products_->RunExact(
      {.weight = input.weight, .in = job.in, .out = Packed(gate, rows, 1), .is_decode = is_decode_},
      stream_.get()));
  ffn.out = Packed(out, rows, job.in.width);
  ffn.row_gate = gate;
  job.shared = out;
  return RunFfn(ffn);
}

// Pair by pair: exact, and slow where experts are large.
absl::Status CudaBackend::RunFloatExperts(const MoeFfnArgs& args, const MoeJob& job) {
  WL_RETURN_IF_ERROR(TopExperts(job.top, stream_.get()));
  const int64_t pairs = job.in.row_count * args.used_count;
  const int64_t n_embd = job.in.width;
  const int64_t most = MostRows(job.in.row_count) * args.used_count;
  WL_ASSIGN_OR_RETURN(float* const gate, gate_.Get<float>(most * job.n_ff));
  WL_ASSIGN_OR_RETURN(float* const up, up_.Get<float>(most * job.n_ff));
  WL_ASSIGN_OR_RETURN(float* const y, packed_out_.Get<float>(most * n_embd));
  FloatProductArgs product = {.columns = static_cast<int32_t>(job.n_ff),
                              .k = static_cast<int32_t>(n_embd),
                              .x = job.in.data,
                              .x_stride = job.in.stride,
                              .rows = static_cast<int32_t>(pairs),
                              .experts = job.top.expert_ids,
                              .rows_per_source = args.used_count,
                              .y_stride = job.n_ff};
  const bool is_fused = job.up == nullptr;
  const CudaWeight& up_weight = is_fused ? *job.gate : *job.up;
  const int64_t matrix_values = job.n_ff * n_embd;
  product.expert_stride = matrix_values * (is_fused ? 2 : 1);
  WL_ASSIGN_OR_RETURN(product.weights, job.gate->Floats(grids_.grids(), stream_.get()));
  product.expert_scales = job.gate->scales_on_device();
  product.y = gate;
  WL_RETURN_IF_ERROR(FloatProduct(product, stream_.get()));
  WL_ASSIGN_OR_RETURN(product.weights, up_weight.Floats(grids_.grids(), stream_.get()));
  if (is_fused) product.weights += matrix_values;
  product.expert_scales = up_weight.scales_on_device();
  product.y = up;
  WL_RETURN_IF_ERROR(FloatProduct(product, stream_.get()));
  WL_RETURN_IF_ERROR(ActivateRows(Activation::kSilu, Packed(gate, pairs, job.n_ff),
                                  Packed(up, pairs, job.n_ff), stream_.get()));
  // The scales of down are in the routing weights.
  product = {.expert_stride = matrix_values,
             .columns = static_cast<int32_t>(n_embd),
             .k = static_cast<int32_t>(job.n_ff),
             .x = gate,
             .x_stride = job.n_ff,
             .rows = static_cast<int32_t>(pairs),
             .experts = job.top.expert_ids,
             .y = y,
             .y_stride = n_embd};
  WL_ASSIGN_OR_RETURN(product.weights, job.down->Floats(grids_.grids(), stream_.get()));
  WL_RETURN_IF_ERROR(FloatProduct(product, stream_.get()));
  return WeightedSum({.y = y,
                      .weights = job.top.weights,
                      .slots = args.used_count,
                      .shared = job.shared,
                      .out = job.out,
                      .accumulate = args.accumulate},
                     stream_.get());
}

absl::StatusOr<const ExpertWeights*> CudaBackend::PackLayer(const MoeJob& job) {
  std::unique_ptr<ExpertWeights>& layer = job.down->expert_layer();
  if (layer != nullptr) return layer.get();
  auto packed = std::make_unique<ExpertWeights>();
  const auto raw_of = [this](const CudaWeight& weight, int64_t rows, const uint8_t* blocks) {
    return RawExperts{.type = weight.type(),
                      .experts = static_cast<int32_t>(weight.expert_count()),
                      .rows = static_cast<int32_t>(rows),
                      .k = static_cast<int32_t>(weight.input_width()),
                      .blocks = blocks,
                      .expert_bytes = weight.output_width() * weight.row_bytes(),
                      .device_grids = &grids_.grids()};
  };
  WL_ASSIGN_OR_RETURN(const uint8_t* const gate_blocks, job.gate->BlocksOnce());
  const RawExperts gate = raw_of(*job.gate, job.n_ff, gate_blocks);
  RawExperts up;
  if (job.up == nullptr) {
    up = raw_of(*job.gate, job.n_ff, gate_blocks + job.n_ff * job.gate->row_bytes());
  } else {
    WL_ASSIGN_OR_RETURN(const uint8_t* const up_blocks, job.up->BlocksOnce());
    up = raw_of(*job.up, job.n_ff, up_blocks);
  }
  if (gate.type == up.type) {
    WL_ASSIGN_OR_RETURN(packed->gate_up, PackGateUp(gate, up, stream_.get()));
  } else {
    WL_ASSIGN_OR_RETURN(packed->gate, PackExperts(gate, stream_.get()));
    WL_ASSIGN_OR_RETURN(packed->up, PackExperts(up, stream_.get()));
  }
  job.gate->Release();
  if (job.up != nullptr) job.up->Release();
  WL_ASSIGN_OR_RETURN(const uint8_t* const down_blocks, job.down->BlocksOnce());
  WL_ASSIGN_OR_RETURN(
      packed->down,
      PackExperts(raw_of(*job.down, job.down->output_width(), down_blocks), stream_.get()));
  job.down->Release();
  layer = std::move(packed);
  return layer.get();
}

absl::StatusOr<ExpertProduct*> CudaBackend::PlanExperts(const MoeFfnArgs& args, const MoeJob& job,
                                                        const ExpertWeights& weights) {
  const ExpertPlan plan = {.experts = weights.down.experts,
                           .slots = args.used_count,
                           .n_embd = static_cast<int32_t>(job.in.width),
                           .n_ff = static_cast<int32_t>(job.n_ff),
                           .max_tokens = static_cast<int32_t>(MostRows(job.in.row_count))};
  PlannedExperts& planned = experts_[{plan.experts, plan.slots, plan.n_embd, plan.n_ff}];
  if (planned.product == nullptr || planned.max_tokens < job.in.row_count) {
    WL_RETURN_IF_ERROR(stream_.Synchronize());
    planned.product.reset();
    WL_ASSIGN_OR_RETURN(planned.product, ExpertProduct::Create(*kernels_, plan));
    planned.max_tokens = plan.max_tokens;
    WL_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "planning expert products"));
  }
  WL_RETURN_IF_ERROR(planned.product->Prepare(weights));
  return planned.product.get();
}

absl::Status CudaBackend::RunPackedExperts(const MoeFfnArgs& args, const MoeJob& job) {
  const int64_t rows = job.in.row_count;
  const int64_t width = job.in.width;
  WL_ASSIGN_OR_RETURN(const ExpertWeights* const weights, PackLayer(job));
  WL_ASSIGN_OR_RETURN(ExpertProduct* const product, PlanExperts(args, job, *weights));
  const bool is_mixed = weights->gate_up.experts == 0;
  // The kernels of decode steps want whole groups of k and one type.
  const bool takes_few = is_decode_ && !is_mixed && width % kPadK == 0;
  ExpertStep step = {.kind = takes_few ? StepKind::kDecode : StepKind::kPrompt,
                     .x = job.in.data,
                     .exact_x = job.in.data,
                     .exact_stride = job.in.stride,
                     .expert_ids = job.top.expert_ids,
                     .weights = job.top.weights,
                     .top = job.top,
                     .tokens = static_cast<int32_t>(rows),
                     .shared = job.shared};
  // Tokens are computed again after others of the step have been written.
  const bool is_overwritten = Overlap(job.in, job.out);
  if (is_overwritten) step.exact_x = nullptr;
  if (takes_few) {
    WL_ASSIGN_OR_RETURN(const MatrixProducts::HalfRows halves,
                        products_->HalvesOf(job.in, stream_.get()));
    step.x = halves.halves;
    step.x_scale = halves.row_scale;
    step.x_is_float = false;
  } else if (job.in.stride != width || is_overwritten) {
    WL_ASSIGN_OR_RETURN(float* const packed, packed_in_.Get<float>(MostRows(rows) * width));
    WL_RETURN_IF_ERROR(
        FinishRows({.in = job.in, .out = Packed(packed, rows, width)}, stream_.get()));
    step.x = packed;
  }
  if (job.out.stride == width) {
    step.out = job.out.data;
    step.residual = args.accumulate ? job.out.data : nullptr;
    if (!is_decode_) return product->Run(*weights, step, stream_.get());
    SlotSums sums;
    step.sums_later = &sums;
    WL_RETURN_IF_ERROR(product->Run(*weights, step, stream_.get()));
    deferred_sums_ = sums;
    return absl::OkStatus();
  }
  WL_ASSIGN_OR_RETURN(step.out, packed_out_.Get<float>(MostRows(rows) * width));
  WL_RETURN_IF_ERROR(product->Run(*weights, step, stream_.get()));
  return FinishRows(
      {.in = Packed(step.out, rows, width), .out = job.out, .accumulate = args.accumulate},
      stream_.get());
}

absl::Status CudaBackend::MoeFfn(const MoeFfnArgs& args) {
  WL_ASSIGN_OR_RETURN(MoeJob job, CheckMoe(args));
  if (job.in.row_count == 0) return absl::OkStatus();
  WL_ASSIGN_OR_RETURN(const bool is_live, EnterFollowingOp(7, job.router.weight, job.gate, job.up,
                                                           job.down, job.in, job.out));
  if (!is_live) return absl::OkStatus();
  WL_RETURN_IF_ERROR(ScoreExperts(args, job));
  if (args.shared_gate_input != nullptr) WL_RETURN_IF_ERROR(RunSharedExpert(args, job));
  const absl::Status ran = job.is_float ? RunFloatExperts(args, job) : RunPackedExperts(args, job);
  products_->ForgetInput();
  return ran;
}

}  // namespace warpline::cuda
