// How much memory the sequences of a model need on a stage beside its weights.
#pragma once

#include <cstdint>

#include "model/layer_range.h"
#include "model/model_spec.h"

namespace warpline {

// How keys and values are kept; kQ8_0 has one f16 scale for each 32 values of a head (16 or 8 where
// the head size is no multiple).
enum class CacheFormat { kF32, kF16, kQ8_0 };

struct StateBytes {
  int64_t page = 0;  // of a page of 64 tokens: keys and values, and the indexer's pooled keys
  int64_t slot = 0;  // of a sequence, whatever its length: recurrent memory, convolution columns,
                     // the indexer's raw keys
};

StateBytes StateBytesOf(const ModelSpec& spec, LayerRange layers, CacheFormat format);

// Bytes that a stage takes for `page_count` pages and `slot_count` sequences: that many of the
// above, large buffers in whole huge pages, and on the last stage the ids of the tokens.
int64_t CacheBytesOf(const ModelSpec& spec, LayerRange layers, CacheFormat format,
                     int64_t page_count, int slot_count);

}  // namespace warpline
