#include "worker/layers/ngram_injection.h"

#include "base/status.h"

namespace warpline {

absl::StatusOr<NgramInjection> NgramInjection::Load(WeightLoader& loader, const ModelSpec& spec,
                                                    int layer, const StatePlan& state,
                                                    Backend& backend) {
  NgramInjection injection;
  injection.n_embd_ = spec.n_embd;
  injection.stream_count_ = spec.hyper.stream_count;
  injection.conv_kernel_ = spec.ple.conv_kernel;
  injection.dilation_ = spec.ple.ngram_size;  // the model ties the two together
  injection.eps_ = static_cast<float>(spec.rms_eps);
  const auto load_gamma = [&](const char* name) {
    return loader.LoadVector(LayerTensorName(layer, name), spec.residual_width);
  };
  WL_ASSIGN_OR_RETURN(injection.key_, loader.LoadMatrix(LayerTensorName(layer, "ple_key"),
                                                        {.input_width = spec.n_embd,
                                                         .output_width = spec.residual_width}));
  WL_ASSIGN_OR_RETURN(injection.value_,
                      loader.LoadMatrix(LayerTensorName(layer, "ple_value"),
                                        {.input_width = spec.n_embd, .output_width = spec.n_embd}));
  WL_ASSIGN_OR_RETURN(injection.key_gamma_, load_gamma("ple_norm_key.weight"));
  WL_ASSIGN_OR_RETURN(injection.query_gamma_, load_gamma("ple_norm_query.weight"));
  WL_ASSIGN_OR_RETURN(injection.conv_gamma_, load_gamma("ple_norm_conv.weight"));
  WL_ASSIGN_OR_RETURN(injection.kernel_,
                      loader.LoadConvolution(LayerTensorName(layer, "ple_conv1d.weight"),
                                             spec.ple.conv_kernel, spec.residual_width));
  WL_ASSIGN_OR_RETURN(
      injection.columns_,
      backend.CreateSlotState({.slot_count = state.slot_count,
                               .value_count = spec.ple.column_count() * spec.residual_width}));
  return injection;
}

absl::Status NgramInjection::Run(const LayerContext& context, const Tensor& wide) const {
  return context.backend.Ple(
      {.ngrams = PackedRows(context.workspace.ngrams.get(), wide.row_count, n_embd_),
       .wide = wide,
       .stream_count = stream_count_,
       .key = key_.linear(),
       .value = value_.linear(),
       .key_gamma = key_gamma_.get(),
       .query_gamma = query_gamma_.get(),
       .conv_gamma = conv_gamma_.get(),
       .conv_kernel = conv_kernel_,
       .dilation = dilation_,
       .kernel = kernel_.get(),
       .eps = eps_,
       .columns = columns_.get()});
}

}  // namespace warpline
