#include "worker/layers/delta_net_mixer.h"

#include <utility>
#include <vector>

#include "base/status.h"

namespace warpline {

absl::StatusOr<std::unique_ptr<Mixer>> DeltaNetMixer::Load(WeightLoader& loader,
                                                           const ModelSpec& spec, int layer,
                                                           const StatePlan& state,
                                                           Backend& backend) {
  const DeltaNetSpec& shape = spec.delta_net;
  std::unique_ptr<DeltaNetMixer> mixer(new DeltaNetMixer(shape, static_cast<float>(spec.rms_eps)));
  WL_RETURN_IF_ERROR(mixer->LoadProjections(loader, layer, spec.n_embd));
  WL_RETURN_IF_ERROR(mixer->LoadVectors(loader, layer));
  WL_ASSIGN_OR_RETURN(mixer->columns_,
                      backend.CreateSlotState(
                          {.slot_count = state.slot_count, .value_count = shape.column_values()}));
  WL_ASSIGN_OR_RETURN(mixer->memory_,
                      backend.CreateSlotState(
                          {.slot_count = state.slot_count, .value_count = shape.memory_values()}));
  return mixer;
}

absl::Status DeltaNetMixer::LoadProjections(WeightLoader& loader, int layer, int n_embd) {
  const auto load = [&](const char* name, int64_t output_width) {
    return loader.LoadMatrix(LayerTensorName(layer, name),
                             {.input_width = n_embd, .output_width = output_width});
  };
  // Older files of qwen3next pack these head by head.
  if (loader.Has(LayerTensorName(layer, "attn_qkv.weight"))) {
    WL_ASSIGN_OR_RETURN(qkv_, load("attn_qkv", shape_.qkv_width()));
    WL_ASSIGN_OR_RETURN(z_, load("attn_gate", shape_.value_width()));
  } else {
    WL_RETURN_IF_ERROR(LoadPackedInput(loader, layer, n_embd));
  }
  if (loader.Has(LayerTensorName(layer, "ssm_beta.weight"))) {
    WL_ASSIGN_OR_RETURN(beta_, load("ssm_beta", shape_.n_head_value));
    WL_ASSIGN_OR_RETURN(alpha_, load("ssm_alpha", shape_.n_head_value));
  } else {
    WL_RETURN_IF_ERROR(LoadPackedGates(loader, layer, n_embd));
  }
  WL_ASSIGN_OR_RETURN(
      output_, loader.LoadMatrix(LayerTensorName(layer, "ssm_out"),
                                 {.input_width = shape_.value_width(), .output_width = n_embd}));
  return absl::OkStatus();
}

// For each key head: q, k, then v and z of its value heads.
absl::Status DeltaNetMixer::LoadPackedInput(WeightLoader& loader, int layer, int n_embd) {
  const int64_t dim = shape_.head_dim;
  const int64_t values = shape_.n_head_value / shape_.n_head_key * dim;
  const int64_t group = 2 * dim + 2 * values;
  RowRanges qkv;
  RowRanges z;
  for (const int64_t part : {0, 1}) {
    for (int64_t head = 0; head < shape_.n_head_key; ++head) {
      qkv.push_back({.first = head * group + part * dim, .count = dim});
    }
  }
  for (int64_t head = 0; head < shape_.n_head_key; ++head) {
    qkv.push_back({.first = head * group + 2 * dim, .count = values});
    z.push_back({.first = head * group + 2 * dim + values, .count = values});
  }
  WL_ASSIGN_OR_RETURN(
      std::vector<Matrix> parts,
      loader.LoadParts(LayerTensorName(layer, "ssm_in"),
                       {.input_width = n_embd, .output_width = group * shape_.n_head_key},
                       {qkv, z}));
  qkv_ = std::move(parts[0]);
  z_ = std::move(parts[1]);
  return absl::OkStatus();
}

// For each key head: beta, then alpha of its value heads.
absl::Status DeltaNetMixer::LoadPackedGates(WeightLoader& loader, int layer, int n_embd) {
  const int64_t values = shape_.n_head_value / shape_.n_head_key;
  RowRanges beta;
  RowRanges alpha;
  for (int64_t head = 0; head < shape_.n_head_key; ++head) {
    beta.push_back({.first = 2 * head * values, .count = values});
    alpha.push_back({.first = (2 * head + 1) * values, .count = values});
  }
  WL_ASSIGN_OR_RETURN(
      std::vector<Matrix> parts,
      loader.LoadParts(LayerTensorName(layer, "ssm_ba"),
                       {.input_width = n_embd, .output_width = int64_t{2} * shape_.n_head_value},
                       {beta, alpha}));
  beta_ = std::move(parts[0]);
  alpha_ = std::move(parts[1]);
  return absl::OkStatus();
}

absl::Status DeltaNetMixer::LoadVectors(WeightLoader& loader, int layer) {
  const auto load = [&](const char* name, int64_t value_count) {
    return loader.LoadVector(LayerTensorName(layer, name), value_count);
  };
  WL_ASSIGN_OR_RETURN(kernel_, loader.LoadConvolution(LayerTensorName(layer, "ssm_conv1d.weight"),
                                                      shape_.conv_kernel, shape_.qkv_width()));
  WL_ASSIGN_OR_RETURN(a_, load("ssm_a", shape_.n_head_value));
  WL_ASSIGN_OR_RETURN(dt_, load("ssm_dt.bias", shape_.n_head_value));
  WL_ASSIGN_OR_RETURN(gamma_, load("ssm_norm.weight", shape_.head_dim));
  return absl::OkStatus();
}

absl::Status DeltaNetMixer::ResetSlot(int kv_slot) const {
  WL_RETURN_IF_ERROR(columns_->Reset(kv_slot));
  return memory_->Reset(kv_slot);
}

absl::Status DeltaNetMixer::Run(const LayerContext& context, const Tensor& in,
                                const Sink& sink) const {
  Backend& backend = context.backend;
  const Workspace& workspace = context.workspace;
  const auto rows = [&in](const std::unique_ptr<Buffer>& buffer, int64_t width) {
    return PackedRows(buffer.get(), in.row_count, width);
  };
  const int64_t heads = shape_.n_head_value;
  const Tensor projected = rows(workspace.qkv, shape_.qkv_width());
  const Tensor qkv = rows(workspace.conv, shape_.qkv_width());
  const Tensor z = rows(workspace.gate, shape_.value_width());
  const Tensor out = rows(workspace.heads, shape_.value_width());
  const Tensor gates = rows(workspace.beta, 2 * heads);
  const Tensor beta = Columns(gates, 0, heads);
  const Tensor alpha = Columns(gates, heads, heads);
  WL_RETURN_IF_ERROR(backend.Linear({.matrix = qkv_.linear(), .in = in, .out = projected}));
  WL_RETURN_IF_ERROR(backend.Linear({.matrix = z_.linear(), .in = in, .out = z}));
  WL_RETURN_IF_ERROR(backend.Linear({.matrix = beta_.linear(), .in = in, .out = beta}));
  WL_RETURN_IF_ERROR(backend.Linear({.matrix = alpha_.linear(), .in = in, .out = alpha}));
  WL_RETURN_IF_ERROR(backend.DeltaPrep({.qkv = projected,
                                        .out = qkv,
                                        .beta = beta,
                                        .alpha = alpha,
                                        .n_head_key = shape_.n_head_key,
                                        .n_head_value = shape_.n_head_value,
                                        .head_dim = shape_.head_dim,
                                        .conv_kernel = shape_.conv_kernel,
                                        .kernel = kernel_.get(),
                                        .a = a_.get(),
                                        .dt = dt_.get(),
                                        .eps = eps_,
                                        .columns = columns_.get()}));
  WL_RETURN_IF_ERROR(backend.DeltaRun({.qkv = qkv,
                                       .beta = beta,
                                       .decay = alpha,
                                       .z = z,
                                       .out = out,
                                       .n_head_key = shape_.n_head_key,
                                       .n_head_value = shape_.n_head_value,
                                       .head_dim = shape_.head_dim,
                                       .grouped_heads = shape_.grouped_heads,
                                       .sigmoid_gate = shape_.sigmoid_gate,
                                       .gamma = gamma_.get(),
                                       .eps = eps_,
                                       .memory = memory_.get()}));
  return backend.Linear(
      {.matrix = output_.linear(), .in = out, .out = sink.out, .accumulate = sink.accumulate});
}

}  // namespace warpline
