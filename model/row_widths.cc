#include "model/row_widths.h"

#include <algorithm>

namespace warpline {
namespace {

constexpr int64_t kFloat = 4;           // bytes
constexpr int64_t kHandOffSlots = 3;    // one computing, one arriving, one leaving
constexpr int64_t kLogitRows = 2 * 32;  // computed at a time, and a copy
constexpr int64_t kExpertRows = 512;    // that share one pass over the experts

// Of one row while it passes the feed-forward networks of the layers, which take turns.
int64_t ExpertWidth(const ModelSpec& spec) {
  const MoeSpec& moe = spec.moe;
  const int64_t shared = moe.n_ff_shared > 0 ? int64_t{moe.n_ff_shared} + spec.n_embd : 0;
  return moe.expert_count + moe.used_count * (int64_t{2} * spec.n_embd + moe.n_ff_expert) +
         spec.n_embd + shared;
}

}  // namespace

int64_t MostBlocks(const ModelSpec& spec, int layer, int64_t max_context) {
  const int64_t ratio = spec.layers[static_cast<size_t>(layer)].compress_ratio;
  return std::min(spec.indexer.token_budget / ratio, max_context / ratio + 1);
}

RowWidths RowWidthsOf(const ModelSpec& spec, LayerRange layers, int64_t max_context) {
  RowWidths widths{.residual = spec.residual_width, .normed = spec.n_embd};
  int64_t most_blocks = 0;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    const LayerSpec& shape = spec.layers[static_cast<size_t>(layer)];
    if (shape.kind == LayerKind::kDeltaNet) {
      widths.heads = std::max<int64_t>(widths.heads, spec.delta_net.value_width());
      widths.qkv = std::max<int64_t>(widths.qkv, spec.delta_net.qkv_width());
      widths.conv = spec.delta_net.qkv_width();
      widths.beta = int64_t{2} * spec.delta_net.n_head_value;
      continue;
    }
    if (shape.compress_ratio > 0) {
      most_blocks = std::max(most_blocks, MostBlocks(spec, layer, max_context));
    }
    const int64_t width = int64_t{shape.n_head} * spec.head_dim;
    widths.heads = std::max(widths.heads, width);
    widths.qkv = std::max(widths.qkv, width + int64_t{2} * shape.n_head_kv * spec.head_dim);
  }
  if (spec.has_attention_gate) widths.gate = widths.heads;
  const bool is_wide = spec.hyper.stream_count > 1;
  if (is_wide || spec.architecture == Architecture::kGemma3) widths.branch = spec.n_embd;
  if (is_wide) widths.inject = spec.hyper.stream_count;
  if (most_blocks > 0) {
    widths.index = int64_t{spec.indexer.n_head + 1} * spec.indexer.head_dim;
    widths.selection = 1 + most_blocks;
  }
  if (spec.ple.layer >= layers.begin && spec.ple.layer < layers.end) widths.ngrams = spec.n_embd;
  return widths;
}

int64_t StepBytesOf(const ModelSpec& spec, LayerRange layers, int64_t max_rows,
                    int64_t max_context) {
  const RowWidths widths = RowWidthsOf(spec, layers, max_context);
  // Rows of the n-gram table are put together before they go to the device.
  int64_t width = widths.sum() + widths.ngrams;
  int64_t values = 0;
  int64_t widest_ff = 0;
  bool has_experts = false;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    const LayerSpec& shape = spec.layers[static_cast<size_t>(layer)];
    has_experts |= shape.is_moe;
    if (!shape.is_moe) widest_ff = std::max<int64_t>(widest_ff, shape.n_ff);
  }
  width += widest_ff;
  if (has_experts) values += std::min(max_rows, kExpertRows) * ExpertWidth(spec);
  if (layers.end < spec.n_layer) {
    width += kHandOffSlots * spec.residual_width;
  } else {
    width += spec.n_embd;
    values += kLogitRows * spec.n_vocab;
  }
  return (max_rows * width + values) * kFloat;
}

}  // namespace warpline
