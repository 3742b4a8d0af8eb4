// How much room the rows of one step take on a stage, beside its weights and what sequences keep.
#pragma once

#include <array>
#include <cstdint>

#include "model/layer_range.h"
#include "model/model_spec.h"

namespace warpline {

// Most blocks that a row of a sparse layer chooses; more than a sequence can have make no
// difference.
int64_t MostBlocks(const ModelSpec& spec, int layer, int64_t max_context);

// Values of four bytes of a row in each buffer that the layers of a stage share; 0: none is needed.
struct RowWidths {
  int64_t residual = 0;
  int64_t normed = 0;
  int64_t branch = 0;
  int64_t qkv = 0;
  int64_t heads = 0;
  int64_t gate = 0;
  int64_t conv = 0;
  int64_t beta = 0;
  int64_t index = 0;
  int64_t selection = 0;
  int64_t inject = 0;
  int64_t ngrams = 0;

  std::array<int64_t, 12> all() const {
    return {residual, normed, branch, qkv,       heads,  gate,
            conv,     beta,   index,  selection, inject, ngrams};
  }
};
RowWidths RowWidthsOf(const ModelSpec& spec, LayerRange layers, int64_t max_context);

// Bytes that a stage takes for steps of at most max_rows rows: the buffers above, hand-off slots to
// the next stage, what goes into the head, logits, and the working room of the back end's ops.
int64_t StepBytesOf(const ModelSpec& spec, LayerRange layers, int64_t max_rows,
                    int64_t max_context);

}  // namespace warpline
