#include "worker/layers/attention_mixer.h"

#include <utility>
#include <vector>

#include "base/status.h"

namespace warpline {

absl::StatusOr<std::unique_ptr<Mixer>> AttentionMixer::Load(WeightLoader& loader,
                                                            const ModelSpec& spec, int layer,
                                                            const StatePlan& state,
                                                            Backend& backend) {
  std::unique_ptr<AttentionMixer> mixer(new AttentionMixer());
  const LayerSpec& shape = spec.layers[layer];
  mixer->n_head_ = shape.n_head;
  mixer->n_head_kv_ = shape.n_head_kv;
  mixer->head_dim_ = spec.head_dim;
  mixer->eps_ = static_cast<float>(spec.rms_eps);
  mixer->scale_ = static_cast<float>(spec.attention_scale);
  mixer->is_local_ = shape.kind == LayerKind::kSlidingAttention;
  mixer->window_ = mixer->is_local_ ? spec.window : 0;
  WL_RETURN_IF_ERROR(mixer->LoadProjections(loader, spec, layer));
  if (spec.has_qk_norm) {
    WL_ASSIGN_OR_RETURN(
        mixer->q_gamma_,
        loader.LoadVector(LayerTensorName(layer, "attn_q_norm.weight"), spec.head_dim));
    WL_ASSIGN_OR_RETURN(
        mixer->k_gamma_,
        loader.LoadVector(LayerTensorName(layer, "attn_k_norm.weight"), spec.head_dim));
  }
  if (shape.compress_ratio > 0) {
    WL_ASSIGN_OR_RETURN(mixer->indexer_, Indexer::Load(loader, spec, layer, state, backend));
  }
  WL_ASSIGN_OR_RETURN(mixer->cache_, backend.CreateKvCache({.type = state.kv_type,
                                                            .n_head = mixer->n_head_,
                                                            .n_head_kv = mixer->n_head_kv_,
                                                            .head_dim = mixer->head_dim_,
                                                            .page_count = state.page_count}));
  return mixer;
}

absl::Status AttentionMixer::LoadProjections(WeightLoader& loader, const ModelSpec& spec,
                                             int layer) {
  using Part = WeightLoader::Part;
  const int64_t q_width = int64_t{n_head_} * head_dim_;
  const int64_t kv_width = int64_t{n_head_kv_} * head_dim_;
  const auto named = [layer](const char* name, int64_t width) {
    return Part{.name = LayerTensorName(layer, name), .output_width = width};
  };
  std::vector<Part> parts;
  if (spec.has_attention_gate) {
    WL_RETURN_IF_ERROR(LoadGatedQueries(loader, spec, layer));
  } else if (loader.Has(LayerTensorName(layer, "attn_qkv.weight"))) {
    parts = {named("attn_qkv", q_width + 2 * kv_width)};
  } else {
    parts = {named("attn_q", q_width)};
  }
  if (parts.empty() || parts[0].output_width == q_width) {
    parts.push_back(named("attn_k", kv_width));
    parts.push_back(named("attn_v", kv_width));
  }
  const Bias bias = spec.has_attention_gate ? Bias::kNone : Bias::kIfPresent;
  for (size_t first = 0; first < parts.size();) {
    size_t end = first + 1;
    Projection projection{.width = parts[first].output_width};
    while (end < parts.size() && loader.CanJoin(parts[first], parts[end])) {
      projection.width += parts[end++].output_width;
    }
    WL_ASSIGN_OR_RETURN(
        projection.matrix,
        loader.LoadJoined(absl::MakeSpan(parts).subspan(first, end - first), spec.n_embd, bias));
    projections_.push_back(std::move(projection));
    first = end;
  }
  const Bias output_bias =
      spec.architecture == Architecture::kLlama ? Bias::kIfPresent : Bias::kNone;
  WL_ASSIGN_OR_RETURN(
      output_, loader.LoadMatrix(
                   LayerTensorName(layer, "attn_output"),
                   {.input_width = q_width, .output_width = spec.n_embd, .only_multiplied = true},
                   output_bias));
  return absl::OkStatus();
}

// The file has the rows of each head's query and then those of its gate.
absl::Status AttentionMixer::LoadGatedQueries(WeightLoader& loader, const ModelSpec& spec,
                                              int layer) {
  RowRanges queries;
  RowRanges gates;
  for (int64_t head = 0; head < n_head_; ++head) {
    queries.push_back({.first = 2 * head * head_dim_, .count = head_dim_});
    gates.push_back({.first = (2 * head + 1) * head_dim_, .count = head_dim_});
  }
  WL_ASSIGN_OR_RETURN(std::vector<Matrix> parts,
                      loader.LoadParts(LayerTensorName(layer, "attn_q"),
                                       {.input_width = spec.n_embd,
                                        .output_width = int64_t{2} * n_head_ * head_dim_,
                                        .only_multiplied = true},
                                       {queries, gates}));
  projections_.push_back({.matrix = std::move(parts[0]), .width = int64_t{n_head_} * head_dim_});
  gate_ = std::move(parts[1]);
  return absl::OkStatus();
}

// Joined matrices write the same columns as separate ones: each column is a sum of its own.
absl::Status AttentionMixer::Project(Backend& backend, const Tensor& in, const Tensor& qkv) const {
  int64_t first = 0;
  for (const Projection& projection : projections_) {
    WL_RETURN_IF_ERROR(backend.Linear({.matrix = projection.matrix.linear(),
                                       .in = in,
                                       .out = Columns(qkv, first, projection.width)}));
    first += projection.width;
  }
  return absl::OkStatus();
}

absl::Status AttentionMixer::ResetSlot(int kv_slot) const {
  return indexer_.has_value() ? indexer_->ResetSlot(kv_slot) : absl::OkStatus();
}

absl::Status AttentionMixer::Run(const LayerContext& context, const Tensor& in,
                                 const Sink& sink) const {
  Backend& backend = context.backend;
  const int64_t q_width = int64_t{n_head_} * head_dim_;
  const int64_t kv_width = int64_t{n_head_kv_} * head_dim_;
  const Tensor qkv = PackedRows(context.workspace.qkv.get(), in.row_count, q_width + 2 * kv_width);
  const Tensor heads = PackedRows(context.workspace.heads.get(), in.row_count, q_width);
  const Tensor q = Columns(qkv, 0, q_width);
  WL_RETURN_IF_ERROR(Project(backend, in, qkv));
  WL_RETURN_IF_ERROR(
      backend.QkvRopeStore({.q = q,
                            .k = Columns(qkv, q_width, kv_width),
                            .v = Columns(qkv, q_width + kv_width, kv_width),
                            .n_head = n_head_,
                            .n_head_kv = n_head_kv_,
                            .head_dim = head_dim_,
                            .q_gamma = q_gamma_.get(),
                            .k_gamma = k_gamma_.get(),
                            .eps = eps_,
                            .rope = (is_local_ ? context.rope_local : context.rope).args(),
                            .cache = cache_.get()}));
  Tensor gate;
  if (gate_.weight != nullptr) {
    gate = PackedRows(context.workspace.gate.get(), in.row_count, q_width);
    WL_RETURN_IF_ERROR(backend.Linear({.matrix = gate_.linear(), .in = in, .out = gate}));
  }
  const AttentionArgs attention{.q = q,
                                .out = heads,
                                .n_head = n_head_,
                                .n_head_kv = n_head_kv_,
                                .head_dim = head_dim_,
                                .scale = scale_,
                                .window = window_,
                                .cache = cache_.get(),
                                .gate = gate};
  if (indexer_.has_value()) {
    WL_RETURN_IF_ERROR(indexer_->Select(context, in));
    WL_RETURN_IF_ERROR(backend.QsaAttend({.attention = attention,
                                          .ratio = indexer_->ratio(),
                                          .most_blocks = indexer_->most_blocks(),
                                          .selection = context.workspace.selection.get()}));
  } else {
    WL_RETURN_IF_ERROR(backend.Attention(attention));
  }
  return backend.Linear(
      {.matrix = output_.linear(), .in = heads, .out = sink.out, .accumulate = sink.accumulate});
}

}  // namespace warpline
