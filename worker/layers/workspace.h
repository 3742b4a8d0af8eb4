// Where a step's rows live while the layers of a stage work on them.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/layer_range.h"
#include "model/model_spec.h"

namespace warpline {

// One for a stage, shared by its layers, allocated at load for max_rows rows.
struct Workspace {
  std::unique_ptr<Buffer>
      residual;  // [max_rows, residual_width]: what layers add to, and what leaves the stage
  std::unique_ptr<Buffer> normed;  // [max_rows, n_embd]: what goes into a mixer or an FFN
  std::unique_ptr<Buffer> branch;  // [max_rows, n_embd]: what comes out, where it is not added
                                   // to the residual at once
  // [max_rows, widest]: q, k and v side by side, as attention or a DeltaNet projects them
  std::unique_ptr<Buffer> qkv;
  std::unique_ptr<Buffer> heads;      // [max_rows, widest]: what all heads of a mixer give
  std::unique_ptr<Buffer> gate;       // as heads, where mixers have a gate
  std::unique_ptr<Buffer> conv;       // [max_rows, qkv width of a DeltaNet], after the convolution
  std::unique_ptr<Buffer> beta;       // [max_rows, 2 n_head_value]: beta and decay of a DeltaNet
  std::unique_ptr<Buffer> index;      // [max_rows, widest]: q and k of an indexer
  std::unique_ptr<Buffer> selection;  // i32 [max_rows, 1 + most blocks] of an indexer
  std::unique_ptr<Buffer> inject;     // [max_rows, stream_count] of a wide residual
  std::unique_ptr<Buffer> ngrams;     // [max_rows, n_embd]: rows of the n-gram table

  static absl::StatusOr<Workspace> Create(const ModelSpec& spec, LayerRange layers, int max_rows,
                                          int64_t max_context, Backend& backend);
};

// `row_count` rows packed from the start of `buffer`.
inline Tensor PackedRows(Buffer* buffer, int64_t row_count, int64_t width) {
  return {.buffer = buffer, .row_count = row_count, .width = width, .stride = width};
}

// Columns [first, first + width) of `rows`.
inline Tensor Columns(const Tensor& rows, int64_t first, int64_t width) {
  return {.buffer = rows.buffer,
          .row_count = rows.row_count,
          .width = width,
          .stride = rows.stride,
          .first = rows.first + first};
}

}  // namespace warpline
