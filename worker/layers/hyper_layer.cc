#include "worker/layers/hyper_layer.h"

#include <utility>

#include "base/status.h"

namespace warpline {

HyperLayer::HyperLayer(HyperConnection mixer_streams, std::unique_ptr<Mixer> mixer,
                       HyperConnection ffn_streams, FeedForward ffn)
    : mixer_streams_(std::move(mixer_streams)),
      mixer_(std::move(mixer)),
      ffn_streams_(std::move(ffn_streams)),
      ffn_(std::move(ffn)) {}

absl::StatusOr<std::unique_ptr<Layer>> HyperLayer::Load(WeightLoader& loader, const ModelSpec& spec,
                                                        int layer, const StatePlan& state,
                                                        Backend& backend) {
  const auto load_streams = [&](const char* name) {
    return HyperConnection::Load(loader, spec, LayerTensorName(layer, name),
                                 HyperConnection::Inject::kYes);
  };
  WL_ASSIGN_OR_RETURN(HyperConnection mixer_streams, load_streams("hc_attn_"));
  WL_ASSIGN_OR_RETURN(std::unique_ptr<Mixer> mixer, LoadMixer(loader, spec, layer, state, backend));
  WL_ASSIGN_OR_RETURN(HyperConnection ffn_streams, load_streams("hc_ffn_"));
  WL_ASSIGN_OR_RETURN(FeedForward ffn, FeedForward::Load(loader, spec, layer));
  std::unique_ptr<HyperLayer> loaded(new HyperLayer(std::move(mixer_streams), std::move(mixer),
                                                    std::move(ffn_streams), std::move(ffn)));
  loaded->n_embd_ = spec.n_embd;
  if (layer == spec.ple.layer) {
    WL_ASSIGN_OR_RETURN(loaded->ngrams_, NgramInjection::Load(loader, spec, layer, state, backend));
  }
  return loaded;
}

absl::Status HyperLayer::ResetSlot(int kv_slot) const {
  if (ngrams_.has_value()) WL_RETURN_IF_ERROR(ngrams_->ResetSlot(kv_slot));
  return mixer_->ResetSlot(kv_slot);
}

absl::Status HyperLayer::Run(const LayerContext& context, const Tensor& residual) const {
  const Tensor in = PackedRows(context.workspace.normed.get(), residual.row_count, n_embd_);
  const Tensor out = PackedRows(context.workspace.branch.get(), residual.row_count, n_embd_);
  if (ngrams_.has_value()) WL_RETURN_IF_ERROR(ngrams_->Run(context, residual));
  WL_RETURN_IF_ERROR(mixer_streams_.Mix(context, residual, in));
  WL_RETURN_IF_ERROR(mixer_->Run(context, in, {.out = out}));
  WL_RETURN_IF_ERROR(mixer_streams_.Combine(context, residual, out));
  WL_RETURN_IF_ERROR(ffn_streams_.Mix(context, residual, in));
  WL_RETURN_IF_ERROR(ffn_.Run(context.backend, in, {.out = out}));
  return ffn_streams_.Combine(context, residual, out);
}

}  // namespace warpline
