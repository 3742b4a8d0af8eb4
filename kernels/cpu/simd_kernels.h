// The inner loops of the CPU back end as tables of functions, one table for each instruction set.
// Both give the same bits: sixteen partial sums along k (element i belongs to sum i mod 16), one
// fixed tree, FMA where it is written.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/instruction_set.h"

namespace warpline {

// out[r, c] = x[r, :] . w[c, :] for `rows` rows and `columns` columns.
struct DotArgs {
  const float* x = nullptr;  // [rows, k]
  int64_t x_stride = 0;      // values
  int64_t rows = 0;
  const uint8_t* w = nullptr;  // [columns, k] in the kernel's type
  int64_t w_stride_bytes = 0;
  int64_t columns = 0;
  int64_t k = 0;
  float* out = nullptr;  // [rows, columns]
  int64_t out_stride = 0;
};

struct DotKernels {
  void (*f32)(const DotArgs& args);
  // Decode and multiply in one go, for few rows: at most kFusedRows.
  void (*q4_1)(const DotArgs& args);
  void (*q8_0)(const DotArgs& args);
};
constexpr int64_t kFusedRows = 4;

// One half of a gated product, or all of a plain one: the dot products and what is applied to them.
struct Products {
  const float* dots = nullptr;
  const float* bias = nullptr;  // may be null
  float scale = 1;
};

// Storage of one page of one KV head: keys transposed [head_dim, 64], values [64, head_dim], then
// the scales of int8.
struct KvLayout {
  KvType type = KvType::kF16;
  int head_dim = 0;
  int group = 0;                   // int8 values for each scale; divides head_dim
  int64_t value_offset = 0;        // bytes from the start of the keys
  int64_t key_scale_offset = 0;    // f16 [head_dim / group, 64]
  int64_t value_scale_offset = 0;  // f16 [64, head_dim / group]
  int64_t head_bytes = 0;          // one head of one page, all of the above
};

struct RowKernels {
  // out = in / sqrt(mean(in^2) + eps) * gamma; may be in place. gamma may be null.
  void (*rms_norm)(const float* in, const float* gamma, float eps, int64_t width, float* out);
  // y = dot scale + bias; out = y, or out + y.
  void (*finish)(const Products& products, int64_t columns, bool accumulate, float* out);
  // out = act(gate) . up
  void (*finish_gated)(const Products& gate, const Products& up, Activation activation,
                       int64_t columns, float* out);
  // Rotates the first n_rot values. `table`: cosines [n_rot], then signed sines [n_rot]; see
  // RopeTable.
  void (*rotate)(const float* table, int n_rot, bool interleaved, float* values);
  void (*scale)(float factor, int64_t width, float* values);
  // out = out + factor values, or factor values when `first`.
  void (*add_scaled)(const float* values, float factor, bool first, int64_t width, float* out);
  void (*add)(const float* values, int64_t width, float* out);
  void (*soft_cap)(float cap, int64_t width, float* values);
  void (*softmax)(int64_t width, float* values);
  float (*sigmoid)(float value);
  // Stores key and value of one token at `slot` (0 to 63) of a page.
  void (*store_kv)(const KvLayout& layout, const float* key, const float* value, int slot,
                   uint8_t* page);
};

// Rows (one token and head each) against one page of keys and values.
struct AttentionTile {
  int row_count = 0;
  const float* const* queries = nullptr;  // [row_count] pointers to head_dim values
  const int* low = nullptr;  // row i sees keys [low[i], high[i]) of the tile; none when low >= high
  const int* high = nullptr;      // both ascend with i
  const float* keys = nullptr;    // [head_dim, 64]
  const float* values = nullptr;  // [64, padded_dim]
  int head_dim = 0;
  int padded_dim = 0;  // head_dim rounded up to 16
  float scale = 0;
  float* scores = nullptr;       // [row_count, 64], scratch
  float* shifts = nullptr;       // [row_count], scratch
  float* corrections = nullptr;  // [row_count], scratch
  float* largest = nullptr;      // [row_count], running maximum; -infinity before the first tile
  float* total = nullptr;        // [row_count], running sum of exponentials
  float* sums = nullptr;         // [row_count, padded_dim], running weighted values
};

struct AttentionKernels {
  void (*decode_keys)(const KvLayout& layout, const uint8_t* page, float* keys);  // all 64
  void (*decode_values)(const KvLayout& layout, const uint8_t* page, int first, int last,
                        float* values);
  // Keys of tokens [first, first + count) of a page to columns [column, column + count) of a tile.
  void (*gather_keys)(const KvLayout& layout, const uint8_t* page, int first, int count, int column,
                      float* keys);
  void (*tile)(const AttentionTile& tile);
  void (*finish)(const float* sums, float total, int head_dim, float* out);
};

// Tables of one instruction set; the processor must have it.
const DotKernels& GetDotKernels(InstructionSet set);
const RowKernels& GetRowKernels(InstructionSet set);
const AttentionKernels& GetAttentionKernels(InstructionSet set);

}  // namespace warpline
