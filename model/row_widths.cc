#include "model/row_widths.h"

#include <algorithm>

#include "model/allocated_bytes.h"

namespace warpline {
namespace {

constexpr int64_t kFloat = 4;         // bytes
constexpr int64_t kHandOffSlots = 3;  // one computing, one arriving, one leaving
constexpr int64_t kLogitRows = 32;    // computed at a time
constexpr int64_t kExpertRows = 512;  // that share one pass over the experts
constexpr int64_t kWideRows = 256;    // of a wide residual that an op works on at a time
constexpr int64_t kRowBytes = 24;     // id, position and sequence of a row, and copies of them
constexpr int64_t kPairBytes = 24;    // of a row and one of its experts, in lists

// Bytes of buffers, in values of four bytes.
class Room {
 public:
  void Add(int64_t values) { bytes_ += AllocatedBytes(values * kFloat); }
  void AddBytes(int64_t bytes) { bytes_ += bytes; }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

// Layers take turns, so the widest counts.
void AddFeedForward(const ModelSpec& spec, LayerRange layers, int64_t max_rows, Room& room) {
  int64_t widest = 0;
  bool has_experts = false;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    const LayerSpec& shape = spec.layers[static_cast<size_t>(layer)];
    has_experts |= shape.is_moe;
    if (!shape.is_moe) widest = std::max<int64_t>(widest, shape.n_ff);
  }
  room.Add(max_rows * widest);
  if (!has_experts) return;
  const MoeSpec& moe = spec.moe;
  const int64_t rows = std::min(max_rows, kExpertRows);
  const int64_t pairs = rows * moe.used_count;
  room.Add(rows * moe.expert_count);
  room.Add(pairs * spec.n_embd);  // what goes into the experts
  room.Add(pairs * moe.n_ff_expert);
  room.Add(pairs * spec.n_embd);  // what comes out
  room.Add(rows * spec.n_embd);   // its sum
  room.AddBytes(pairs * kPairBytes);
  if (moe.n_ff_shared == 0) return;
  room.Add(rows * moe.n_ff_shared);
  room.Add(rows * spec.n_embd);
}

// The cosines and sines of the rows' positions, one table for each way of rotating.
void AddRotations(const ModelSpec& spec, LayerRange layers, int64_t max_rows, Room& room) {
  bool has_global = false;
  bool has_local = false;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    const LayerKind kind = spec.layers[static_cast<size_t>(layer)].kind;
    has_global |= kind == LayerKind::kAttention;
    has_local |= kind == LayerKind::kSlidingAttention;
  }
  if (has_global) room.Add(max_rows * 2 * spec.rope.n_rot);
  if (has_local) room.Add(max_rows * 2 * spec.rope_local.n_rot);
}

// Mixing the streams of a wide residual, and adding n-grams to it.
void AddWideRows(const ModelSpec& spec, bool has_ngrams, int64_t max_rows, Room& room) {
  const int64_t rows = std::min(max_rows, kWideRows);
  room.Add(rows * spec.residual_width);
  room.Add(rows * spec.residual_width);
  room.Add(rows * std::max<int64_t>(spec.hyper.low_rank, has_ngrams ? spec.n_embd : 0));
  if (has_ngrams) room.Add(rows * spec.residual_width);
}

void AddHead(const ModelSpec& spec, int64_t max_rows, Room& room) {
  // Room for all rows, of which only some are ever used: memory comes by the huge page.
  const int64_t all_rows = max_rows * spec.n_embd * kFloat;
  const int64_t used_rows = std::min(kLogitRows, max_rows) * spec.n_embd * kFloat;
  room.AddBytes(all_rows < kHugePageBytes ? all_rows
                                          : AllocatedBytes(std::max(used_rows, kHugePageBytes)));
  room.Add(kLogitRows * spec.n_vocab);
  room.AddBytes(kLogitRows * spec.n_vocab * kFloat);  // a copy
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
  Room room;
  for (const int64_t width : widths.all()) room.Add(max_rows * width);
  // Rows of the n-gram table are put together before they go to the device.
  room.AddBytes(max_rows * widths.ngrams * kFloat);
  room.AddBytes(max_rows * kRowBytes);
  AddRotations(spec, layers, max_rows, room);
  AddFeedForward(spec, layers, max_rows, room);
  if (spec.hyper.stream_count > 1) AddWideRows(spec, widths.ngrams > 0, max_rows, room);
  if (layers.end < spec.n_layer) {
    room.AddBytes(kHandOffSlots * max_rows * spec.residual_width * kFloat);
  } else {
    AddHead(spec, max_rows, room);
  }
  return room.bytes();
}

}  // namespace warpline
