#include "model/state_bytes.h"

#include "model/allocated_bytes.h"

namespace warpline {
namespace {

constexpr int64_t kPage = 64;        // tokens
constexpr int64_t kFloat = 4;        // bytes
constexpr int64_t kTokenId = 2 * 4;  // in a list that grows, and in what it grew out of

// Keys or values of one token and head.
int64_t HeadBytes(CacheFormat format, int64_t head_dim) {
  switch (format) {
    case CacheFormat::kF32:
      return kFloat * head_dim;
    case CacheFormat::kF16:
      return 2 * head_dim;
    case CacheFormat::kQ8_0: {
      const int64_t group = head_dim % 32 == 0 ? 32 : head_dim % 16 == 0 ? 16 : 8;
      return head_dim + 2 * ((head_dim + group - 1) / group);
    }
  }
  return 0;
}

// Calls add(bytes of a page, bytes of a slot) for each buffer of a layer; one of them is 0.
template <typename Add>
void ForEachBuffer(const ModelSpec& spec, int layer, CacheFormat format, const Add& add) {
  const LayerSpec& shape = spec.layers[static_cast<size_t>(layer)];
  if (layer == spec.ple.layer) add(0, spec.ple.column_count() * spec.residual_width * kFloat);
  if (shape.kind == LayerKind::kDeltaNet) {
    add(0, spec.delta_net.column_values() * kFloat);
    add(0, spec.delta_net.memory_values() * kFloat);
    return;
  }
  add(kPage * 2 * shape.n_head_kv * HeadBytes(format, spec.head_dim), 0);
  if (shape.compress_ratio == 0) return;
  const int64_t ratio = shape.compress_ratio;
  add((kPage + ratio - 1) / ratio * spec.indexer.head_dim * kFloat, 0);
  add(0, (ratio - 1) * spec.indexer.head_dim * kFloat);
}

}  // namespace

StateBytes StateBytesOf(const ModelSpec& spec, LayerRange layers, CacheFormat format) {
  StateBytes bytes;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    ForEachBuffer(spec, layer, format, [&bytes](int64_t page, int64_t slot) {
      bytes.page += page;
      bytes.slot += slot;
    });
  }
  return bytes;
}

int64_t CacheBytesOf(const ModelSpec& spec, LayerRange layers, CacheFormat format,
                     int64_t page_count, int slot_count) {
  int64_t bytes = layers.end == spec.n_layer ? page_count * kPage * kTokenId : 0;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    ForEachBuffer(spec, layer, format, [&](int64_t page, int64_t slot) {
      bytes += AllocatedBytes(page * page_count + slot * slot_count);
    });
  }
  return bytes;
}

}  // namespace warpline
