#include "worker/layers/pre_norm_layer.h"

#include <utility>

#include "base/status.h"

namespace warpline {

PreNormLayer::PreNormLayer(AttentionMixer mixer, FeedForward ffn)
    : mixer_(std::move(mixer)), ffn_(std::move(ffn)) {}

absl::StatusOr<PreNormLayer> PreNormLayer::Load(WeightLoader& loader, const ModelSpec& spec,
                                                int layer, const KvPlan& kv, Backend& backend) {
  WL_ASSIGN_OR_RETURN(AttentionMixer mixer, AttentionMixer::Load(loader, spec, layer, kv, backend));
  WL_ASSIGN_OR_RETURN(FeedForward ffn, FeedForward::Load(loader, spec, layer));
  PreNormLayer loaded(std::move(mixer), std::move(ffn));
  loaded.eps_ = static_cast<float>(spec.rms_eps);
  WL_ASSIGN_OR_RETURN(loaded.mixer_gamma_,
                      loader.LoadVector(LayerTensorName(layer, "attn_norm.weight"), spec.n_embd));
  WL_ASSIGN_OR_RETURN(loaded.ffn_gamma_,
                      loader.LoadVector(LayerTensorName(layer, "ffn_norm.weight"), spec.n_embd));
  return loaded;
}

absl::Status PreNormLayer::Run(Backend& backend, const RopeTable& rope, const Workspace& workspace,
                               const Tensor& residual) const {
  const Tensor normed = PackedRows(workspace.normed.get(), residual.row_count, residual.width);
  WL_RETURN_IF_ERROR(backend.NormConvert(
      {.in = residual, .gamma = mixer_gamma_.get(), .eps = eps_, .out = normed}));
  WL_RETURN_IF_ERROR(mixer_.Run(backend, rope, workspace, normed, residual));
  WL_RETURN_IF_ERROR(
      backend.NormConvert({.in = residual, .gamma = ffn_gamma_.get(), .eps = eps_, .out = normed}));
  return ffn_.Run(backend, normed, residual);
}

}  // namespace warpline
