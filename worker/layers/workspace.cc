#include "worker/layers/workspace.h"

#include <algorithm>

#include "base/status.h"
#include "worker/layers/indexer.h"

namespace warpline {

absl::StatusOr<Workspace> Workspace::Create(const ModelSpec& spec, LayerRange layers, int max_rows,
                                            int64_t max_context, Backend& backend) {
  int64_t heads_width = 0;
  int64_t qkv_width = 0;
  bool has_delta_net = false;
  int64_t most_blocks = 0;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    const LayerSpec& shape = spec.layers[layer];
    if (shape.kind == LayerKind::kDeltaNet) {
      has_delta_net = true;
      heads_width = std::max<int64_t>(heads_width, spec.delta_net.value_width());
      qkv_width = std::max<int64_t>(qkv_width, spec.delta_net.qkv_width());
      continue;
    }
    if (shape.compress_ratio > 0) {
      most_blocks = std::max(most_blocks, MostBlocks(spec, layer, max_context));
    }
    const int64_t width = static_cast<int64_t>(shape.n_head) * spec.head_dim;
    heads_width = std::max(heads_width, width);
    qkv_width = std::max(qkv_width, width + int64_t{2} * shape.n_head_kv * spec.head_dim);
  }
  const auto allocate = [&](int64_t width) {
    return backend.Allocate(max_rows * width * static_cast<int64_t>(sizeof(float)));
  };
  Workspace workspace;
  WL_ASSIGN_OR_RETURN(workspace.residual, allocate(spec.residual_width));
  WL_ASSIGN_OR_RETURN(workspace.normed, allocate(spec.n_embd));
  const bool is_wide = spec.hyper.stream_count > 1;
  if (spec.architecture == Architecture::kGemma3 || is_wide) {
    WL_ASSIGN_OR_RETURN(workspace.branch, allocate(spec.n_embd));
  }
  WL_ASSIGN_OR_RETURN(workspace.qkv, allocate(qkv_width));
  WL_ASSIGN_OR_RETURN(workspace.heads, allocate(heads_width));
  if (spec.has_attention_gate) {
    WL_ASSIGN_OR_RETURN(workspace.gate, allocate(heads_width));
  }
  if (has_delta_net) {
    WL_ASSIGN_OR_RETURN(workspace.conv, allocate(spec.delta_net.qkv_width()));
    WL_ASSIGN_OR_RETURN(workspace.beta, allocate(int64_t{2} * spec.delta_net.n_head_value));
  }
  if (is_wide) {
    WL_ASSIGN_OR_RETURN(workspace.inject, allocate(spec.hyper.stream_count));
  }
  if (most_blocks > 0) {
    WL_ASSIGN_OR_RETURN(workspace.index,
                        allocate(int64_t{spec.indexer.n_head + 1} * spec.indexer.head_dim));
    WL_ASSIGN_OR_RETURN(workspace.selection, allocate(1 + most_blocks));
  }
  if (spec.ple.layer >= layers.begin && spec.ple.layer < layers.end) {
    WL_ASSIGN_OR_RETURN(workspace.ngrams, allocate(spec.n_embd));
  }
  return workspace;
}

}  // namespace warpline
