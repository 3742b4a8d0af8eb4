// The n-gram table (PLE) of a model: how token ids become table rows, and who uses them.
#pragma once

#include <cstdint>
#include <vector>

namespace warpline {

// qwen4exp.md sections 2.6 and 8. Checked when it was read: head h of a token uses row
// offsets[h] + (mixed mod moduli[h]), which lies inside the table for any ids.
struct PleSpec {
  int layer = -1;           // the layer that uses the rows; -1: the model has no table
  int ngram_size = 0;       // N, 2 to 8
  int heads_per_ngram = 0;  // n-grams of 2 to N tokens have that many rows each
  int conv_kernel = 0;
  int row_width = 0;                  // dp: values of a row; row_width * head_count() == n_embd
  int32_t eos_token_id = 0;           // cuts n-grams
  int32_t image_token_id = 0;         // stands for positions without a token
  std::vector<uint64_t> multipliers;  // [ngram_size]
  std::vector<uint64_t> offsets;      // [head_count()] first row of each head
  std::vector<uint64_t> moduli;       // [head_count()]
  int64_t row_count = 0;              // of per_layer_token_embd.weight

  // Rows back that the convolution reaches; its taps lie ngram_size rows apart.
  int64_t column_count() const { return int64_t{conv_kernel - 1} * ngram_size; }
  bool present() const { return layer >= 0; }
  int head_count() const { return (ngram_size - 1) * heads_per_ngram; }  // P: rows of one token
};

}  // namespace warpline
