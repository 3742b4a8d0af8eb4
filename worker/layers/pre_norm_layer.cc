#include "worker/layers/pre_norm_layer.h"

#include <utility>

#include "base/status.h"

namespace warpline {

PreNormLayer::PreNormLayer(std::unique_ptr<Mixer> mixer, FeedForward ffn)
    : mixer_(std::move(mixer)), ffn_(std::move(ffn)) {}

absl::StatusOr<std::unique_ptr<Layer>> PreNormLayer::Load(WeightLoader& loader,
                                                          const ModelSpec& spec, int layer,
                                                          const StatePlan& state,
                                                          Backend& backend) {
  WL_ASSIGN_OR_RETURN(std::unique_ptr<Mixer> mixer, LoadMixer(loader, spec, layer, state, backend));
  WL_ASSIGN_OR_RETURN(FeedForward ffn, FeedForward::Load(loader, spec, layer));
  std::unique_ptr<PreNormLayer> loaded(new PreNormLayer(std::move(mixer), std::move(ffn)));
  loaded->eps_ = static_cast<float>(spec.rms_eps);
  const auto load_gamma = [&](const char* name) {
    return loader.LoadVector(LayerTensorName(layer, name), spec.n_embd);
  };
  const bool is_gemma = spec.architecture == Architecture::kGemma3;
  // The hybrid architectures call the norm before the FFN what gemma calls the one behind
  // attention.
  const char* const post_attention = "post_attention_norm.weight";
  WL_ASSIGN_OR_RETURN(loaded->mixer_gamma_, load_gamma("attn_norm.weight"));
  WL_ASSIGN_OR_RETURN(loaded->ffn_gamma_,
                      load_gamma(spec.has_attention_gate ? post_attention : "ffn_norm.weight"));
  if (is_gemma) {
    WL_ASSIGN_OR_RETURN(loaded->mixer_post_gamma_, load_gamma(post_attention));
    WL_ASSIGN_OR_RETURN(loaded->ffn_post_gamma_, load_gamma("post_ffw_norm.weight"));
  }
  return loaded;
}

template <typename Half>
absl::Status PreNormLayer::AddHalf(const LayerContext& context, const Tensor& residual,
                                   const Buffer* gamma, const Buffer* post_gamma,
                                   const Half& half) const {
  const Workspace& workspace = context.workspace;
  const Tensor normed = PackedRows(workspace.normed.get(), residual.row_count, residual.width);
  WL_RETURN_IF_ERROR(
      context.backend.NormConvert({.in = residual, .gamma = gamma, .eps = eps_, .out = normed}));
  if (post_gamma == nullptr) return half(normed, Sink{.out = residual, .accumulate = true});
  const Tensor branch = PackedRows(workspace.branch.get(), residual.row_count, residual.width);
  WL_RETURN_IF_ERROR(half(normed, Sink{.out = branch}));
  return context.backend.NormConvert(
      {.in = branch, .gamma = post_gamma, .eps = eps_, .out = residual, .accumulate = true});
}

absl::Status PreNormLayer::Run(const LayerContext& context, const Tensor& residual) const {
  WL_RETURN_IF_ERROR(
      AddHalf(context, residual, mixer_gamma_.get(), mixer_post_gamma_.get(),
              [&](const Tensor& in, const Sink& sink) { return mixer_->Run(context, in, sink); }));
  return AddHalf(
      context, residual, ffn_gamma_.get(), ffn_post_gamma_.get(),
      [&](const Tensor& in, const Sink& sink) { return ffn_.Run(context.backend, in, sink); });
}

}  // namespace warpline
