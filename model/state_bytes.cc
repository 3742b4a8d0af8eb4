#include "model/state_bytes.h"

namespace warpline {
namespace {

constexpr int64_t kPage = 64;  // tokens
constexpr int64_t kFloat = 4;  // bytes

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

}  // namespace

StateBytes StateBytesOf(const ModelSpec& spec, LayerRange layers, CacheFormat format) {
  StateBytes bytes;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    const LayerSpec& shape = spec.layers[static_cast<size_t>(layer)];
    if (layer == spec.ple.layer) {
      bytes.slot += spec.ple.column_count() * spec.residual_width * kFloat;
    }
    if (shape.kind == LayerKind::kDeltaNet) {
      bytes.slot += (spec.delta_net.column_values() + spec.delta_net.memory_values()) * kFloat;
      continue;
    }
    bytes.page += kPage * 2 * shape.n_head_kv * HeadBytes(format, spec.head_dim);
    if (shape.compress_ratio == 0) continue;
    const int64_t ratio = shape.compress_ratio;
    bytes.page += (kPage + ratio - 1) / ratio * spec.indexer.head_dim * kFloat;
    bytes.slot += (ratio - 1) * spec.indexer.head_dim * kFloat;
  }
  return bytes;
}

}  // namespace warpline
