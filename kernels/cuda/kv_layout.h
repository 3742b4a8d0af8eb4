// How the keys and values of one layer lie in device memory, for host and device.
//
// [page][kv head][key or value] blocks. A block holds kPageTokens rows of head_dim values, cut into
// tiles of `row_bytes` a token: [head_dim / values of a row][kPageTokens][row_bytes]. Where rows
// are 128 or 64 bytes, their 16-byte pieces are swizzled by the token, so that a block copied as it
// is can be read by the matrix units without bank conflicts. int8 blocks end with their scales, f16
// [kPageTokens][head_dim / group].
//
// All values of a page behind the last token of its sequence are finite: who stores the first token
// of a page clears what is behind the step's rows. Masked values are multiplied by zero, never
// looked at, and NaN left by an earlier sequence would get through that.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/half_math.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/step_view.h"

namespace warpline::cuda {

constexpr int kMaxHeadDim = 256;

struct KvLayout {
  KvType type = KvType::kF16;
  int32_t head_dim = 0;
  int32_t value_bytes = 2;
  int32_t group = 0;      // values of one int8 scale; 0 for other types
  int32_t row_bytes = 0;  // of a token in a tile
  int32_t swizzle_shift = 0;
  int32_t swizzle_mask = 0;  // 0: not swizzled
  int32_t scale_offset = 0;  // bytes from the start of a block
  int32_t block_bytes = 0;   // a multiple of 128
};

// A cache as kernels see it.
struct KvView {
  KvLayout layout;
  int32_t n_head_kv = 0;
  uint8_t* data = nullptr;
};

// Byte offset of a value in its block. The other values of its aligned 16 bytes of a row follow it.
WL_INLINE int ValueOffset(const KvLayout& layout, int token, int dim) {
  const int byte = dim * layout.value_bytes;
  const int tile = byte / layout.row_bytes;
  const int in_row = byte - tile * layout.row_bytes;
  const int piece = (in_row >> 4) ^ ((token >> layout.swizzle_shift) & layout.swizzle_mask);
  return (tile * kPageTokens + token) * layout.row_bytes + (piece << 4) + (in_row & 15);
}

WL_INLINE int ScaleOffset(const KvLayout& layout, int token, int group) {
  return layout.scale_offset + 2 * (token * (layout.head_dim / layout.group) + group);
}

WL_INLINE int64_t BlockOffset(const KvView& cache, int64_t page, int kv_head, bool is_value) {
  const int64_t block = (page * cache.n_head_kv + kv_head) * 2 + (is_value ? 1 : 0);
  return block * cache.layout.block_bytes;
}

// The page ids of a row's sequence.
WL_INLINE const int32_t* PagesOfRow(const StepView& step, int row) {
  return step.pages + step.sequences[step.sequence_of_row[row]].first_page;
}

// The first position that the step itself stores, of the sequence of a row.
WL_INLINE int FirstStored(const StepView& step, int row) {
  return step.sequences[step.sequence_of_row[row]].first_position;
}

// A layout for 1 to kMaxHeadDim values; int8 needs a multiple of 8.
constexpr KvLayout MakeKvLayout(KvType type, int head_dim) {
  KvLayout layout;
  layout.type = type;
  layout.head_dim = head_dim;
  layout.value_bytes = type == KvType::kF32 ? 4 : type == KvType::kF16 ? 2 : 1;
  layout.row_bytes = head_dim * layout.value_bytes;
  if (type != KvType::kF32 && layout.row_bytes % 128 == 0) {
    layout.row_bytes = 128;
    layout.swizzle_mask = 7;
  } else if (type == KvType::kQ8_0 && layout.row_bytes == 64) {
    layout.swizzle_shift = 1;
    layout.swizzle_mask = 3;
  }
  layout.scale_offset = kPageTokens * head_dim * layout.value_bytes;
  int bytes = layout.scale_offset;
  if (type == KvType::kQ8_0) {
    layout.group = head_dim % 32 == 0 ? 32 : head_dim % 16 == 0 ? 16 : 8;
    bytes += 2 * kPageTokens * (head_dim / layout.group);
  }
  layout.block_bytes = static_cast<int32_t>(RoundUp(bytes, 128));
  return layout;
}

}  // namespace warpline::cuda
