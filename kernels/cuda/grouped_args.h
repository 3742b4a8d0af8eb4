// What the grouped expert kernels are called with. Plain structs that travel by value to a kernel.
//
// Row space: the (token, slot) pairs sorted by expert, each expert's first row aligned to 8;
// between an expert's last row and the next one's first lie up to 7 rows that nobody writes or
// uses.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace warpline::cuda {

// One unit of work: a tile of tokens of one expert times one block of its weight rows.
struct TileItem {
  int32_t expert = 0;
  int32_t row_tile = 0;   // which block of weight rows, in units of the kernel's M
  int32_t first_row = 0;  // in the row space; a multiple of 8
  int32_t rows = 0;       // live rows, 1 to the kernel's N
};

// y[row, :] = scale(row) * x[row, :] * transpose(W[expert of row]); or, fused, h = silu(gate) * up.
struct GroupedArgs {
  const uint8_t* weights = nullptr;  // packed; expert e at e * expert_bytes
  int64_t expert_bytes = 0;
  int32_t row_blocks = 0;  // weight rows / 16, rounded up (fused: 8 gate rows + 8 up rows a block)
  int32_t k = 0;           // padded: a multiple of 128
  const TileItem* items = nullptr;
  const int32_t* item_count = nullptr;  // in device memory
  int32_t known_items = 0;              // the same where the host knows it, else 0
  const void* table = nullptr;          // the format's table, see WeightFormat::kTableBytes

  // Kernels of decode steps: the previous kernel of the stream is a product of the same rows, which
  // this one need not wait for before it ends.
  bool is_beside = false;

  // Prompt kernels read activation tiles; decode kernels read rows through `ids`.
  const uint8_t* x_tiles = nullptr;
  int32_t x_row_groups = 0;
  const uint16_t* x_rows = nullptr;  // halves [token][k], natural order
  const int32_t* ids = nullptr;      // [row space] row of x_rows

  // Powers of two that undo the scaling of activations and weights; row_scale may be null (1).
  const float* row_scale = nullptr;  // [row space], multiplies every sum
  float weight_scale = 1;

  // Fused output: halves of silu(gate) * up * output_scale, saturated to the largest half;
  // overflow[row] = 1 where that happened. As tiles (prompt) or rows (decode).
  // Plain output: `y` as halves or floats [row space][out_columns], times row_weight[row] if given.
  // Floats of the kernels of decode steps and of wgmma may lie further apart, and may be added to
  // what is there.
  uint8_t* h_tiles = nullptr;
  int32_t h_row_groups = 0;
  uint16_t* h_rows = nullptr;
  float output_scale = 1;
  uint8_t* overflow = nullptr;
  void* y = nullptr;
  bool y_is_float = false;
  int64_t y_pitch = 0;  // floats from one row to the next; 0: out_columns
  bool accumulate = false;
  const float* row_weight = nullptr;  // [row space], routing weight
  int32_t out_columns = 0;            // live columns: n_ff (fused) or M (plain); the rest is masked
};

}  // namespace warpline::cuda
