// How much memory of a card a stage takes that computes with CUDA. Pure functions.
#pragma once

#include <cstdint>

#include "model/gguf.h"
#include "model/layer_range.h"
#include "model/model_spec.h"
#include "model/state_bytes.h"

namespace warpline {

// Bytes of `row_count` rows of `width` weights as the card keeps them for its tiles: sixteen rows
// and 128 values at a time, about 4 % more than in the file for types with superblocks.
int64_t PackedBytes(QuantType type, int64_t row_count, int64_t width);

struct DeviceBytesArgs {
  LayerRange layers;
  CacheFormat format = CacheFormat::kF16;
  int64_t page_count = 0;
  int slot_count = 1;
  int64_t max_rows = 0;  // most of one step
  int64_t max_context = 0;
};

struct DeviceBytes {
  int64_t weights = 0;
  int64_t caches = 0;
  int64_t step = 0;  // room for the rows of a step, and what recorded steps take

  int64_t sum() const { return weights + caches + step; }
};

// What the stage allocates.
DeviceBytes DeviceBytesOf(const GgufFile& file, const ModelSpec& spec, const DeviceBytesArgs& args);

// What a process takes on a card before it allocates anything: the driver's context and the code
// of the kernels. An estimate; `warpline-worker` logs what a stage took in truth.
constexpr int64_t kDeviceContextBytes = int64_t{640} << 20;

}  // namespace warpline
