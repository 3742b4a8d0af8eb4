#include "worker/layers/feed_forward.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace warpline {

absl::StatusOr<FeedForward> FeedForward::Load(WeightLoader& loader, const ModelSpec& spec,
                                              int layer) {
  FeedForward ffn;
  ffn.is_moe_ = spec.layers[layer].is_moe;
  if (!ffn.is_moe_) {
    WL_RETURN_IF_ERROR(ffn.LoadDense(loader, spec, layer));
    return ffn;
  }
  WL_RETURN_IF_ERROR(ffn.LoadExperts(loader, spec, layer));
  if (spec.moe.n_ff_shared > 0) WL_RETURN_IF_ERROR(ffn.LoadSharedExpert(loader, spec, layer));
  WL_RETURN_IF_ERROR(loader.backend().PrepareMoe(ffn.Experts()));
  return ffn;
}

absl::Status FeedForward::LoadDense(WeightLoader& loader, const ModelSpec& spec, int layer) {
  if (spec.architecture == Architecture::kGemma3) activation_ = Activation::kGeluTanh;
  const Bias bias = spec.architecture == Architecture::kLlama ? Bias::kIfPresent : Bias::kNone;
  const MatrixShape inward{
      .input_width = spec.n_embd, .output_width = spec.layers[layer].n_ff, .only_multiplied = true};
  const MatrixShape outward{
      .input_width = spec.layers[layer].n_ff, .output_width = spec.n_embd, .only_multiplied = true};
  WL_ASSIGN_OR_RETURN(gate_, loader.LoadMatrix(LayerTensorName(layer, "ffn_gate"), inward, bias));
  WL_ASSIGN_OR_RETURN(up_, loader.LoadMatrix(LayerTensorName(layer, "ffn_up"), inward, bias));
  WL_ASSIGN_OR_RETURN(down_, loader.LoadMatrix(LayerTensorName(layer, "ffn_down"), outward, bias));
  return absl::OkStatus();
}

absl::Status FeedForward::LoadExperts(WeightLoader& loader, const ModelSpec& spec, int layer) {
  const MoeSpec& moe = spec.moe;
  used_count_ = moe.used_count;
  renormalise_ = moe.renormalise;
  const MatrixShape inward{.input_width = spec.n_embd,
                           .output_width = moe.n_ff_expert,
                           .expert_count = moe.expert_count};
  const MatrixShape outward{.input_width = moe.n_ff_expert,
                            .output_width = spec.n_embd,
                            .expert_count = moe.expert_count};
  WL_ASSIGN_OR_RETURN(
      router_, loader.LoadMatrix(LayerTensorName(layer, "ffn_gate_inp"),
                                 {.input_width = spec.n_embd, .output_width = moe.expert_count}));
  // The architectures that may fuse gate and up are those with recurrent layers.
  const std::string fused = LayerTensorName(layer, "ffn_gate_up_exps");
  if (spec.has_attention_gate && loader.Has(absl::StrCat(fused, ".weight"))) {
    MatrixShape both = inward;
    both.output_width *= 2;
    WL_ASSIGN_OR_RETURN(gate_up_, loader.LoadMatrix(fused, both));
  } else {
    WL_ASSIGN_OR_RETURN(gate_, loader.LoadMatrix(LayerTensorName(layer, "ffn_gate_exps"), inward));
    WL_ASSIGN_OR_RETURN(up_, loader.LoadMatrix(LayerTensorName(layer, "ffn_up_exps"), inward));
  }
  WL_ASSIGN_OR_RETURN(down_, loader.LoadMatrix(LayerTensorName(layer, "ffn_down_exps"), outward));
  return absl::OkStatus();
}

absl::Status FeedForward::LoadSharedExpert(WeightLoader& loader, const ModelSpec& spec, int layer) {
  const MatrixShape inward{
      .input_width = spec.n_embd, .output_width = spec.moe.n_ff_shared, .only_multiplied = true};
  const MatrixShape outward{
      .input_width = spec.moe.n_ff_shared, .output_width = spec.n_embd, .only_multiplied = true};
  WL_ASSIGN_OR_RETURN(shared_gate_input_,
                      loader.LoadMatrix(LayerTensorName(layer, "ffn_gate_inp_shexp"),
                                        {.input_width = spec.n_embd}));
  WL_ASSIGN_OR_RETURN(shared_gate_,
                      loader.LoadMatrix(LayerTensorName(layer, "ffn_gate_shexp"), inward));
  WL_ASSIGN_OR_RETURN(shared_up_,
                      loader.LoadMatrix(LayerTensorName(layer, "ffn_up_shexp"), inward));
  WL_ASSIGN_OR_RETURN(shared_down_,
                      loader.LoadMatrix(LayerTensorName(layer, "ffn_down_shexp"), outward));
  return absl::OkStatus();
}

MoeFfnArgs FeedForward::Experts() const {
  return {.router = router_.linear(),
          .gate = gate_.weight.get(),
          .up = up_.weight.get(),
          .gate_up = gate_up_.weight.get(),
          .down = down_.weight.get(),
          .used_count = used_count_,
          .renormalise = renormalise_,
          .shared_gate_input = shared_gate_input_.weight.get(),
          .shared_gate = shared_gate_.linear(),
          .shared_up = shared_up_.linear(),
          .shared_down = shared_down_.linear()};
}

absl::Status FeedForward::Run(Backend& backend, const Tensor& in, const Sink& sink) const {
  if (!is_moe_) {
    return backend.DenseFfn({.gate = gate_.linear(),
                             .up = up_.linear(),
                             .down = down_.linear(),
                             .activation = activation_,
                             .in = in,
                             .out = sink.out,
                             .accumulate = sink.accumulate});
  }
  MoeFfnArgs experts = Experts();
  experts.in = in;
  experts.out = sink.out;
  experts.accumulate = sink.accumulate;
  return backend.MoeFfn(experts);
}

}  // namespace warpline
