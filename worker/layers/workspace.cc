#include "worker/layers/workspace.h"

#include <algorithm>

#include "base/status.h"

namespace warpline {

absl::StatusOr<Workspace> Workspace::Create(const ModelSpec& spec, LayerRange layers, int max_rows,
                                            Backend& backend) {
  int64_t heads_width = 0;
  int64_t qkv_width = 0;
  bool has_delta_net = false;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    const LayerSpec& shape = spec.layers[layer];
    if (shape.kind == LayerKind::kDeltaNet) {
      has_delta_net = true;
      heads_width = std::max<int64_t>(heads_width, spec.delta_net.value_width());
      qkv_width = std::max<int64_t>(qkv_width, spec.delta_net.qkv_width());
      continue;
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
  if (spec.architecture == Architecture::kGemma3) {
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
  return workspace;
}

}  // namespace warpline
