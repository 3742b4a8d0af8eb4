// Checks and decodes rows of the n-gram table.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/quant_decode.h"
#include "worker/ple/ngram_reader.h"

namespace warpline {

class RowDecoder {
 public:
  static absl::StatusOr<RowDecoder> Create(const NgramTable& table);

  // InvalidArgument for a row outside of the table, or when `out` has not their size.
  absl::Status Check(absl::Span<const int64_t> rows, absl::Span<float> out) const;
  // One row's bytes to out[row_width].
  void Decode(const uint8_t* bytes, float* out) const { decode_(bytes, row_width_, out); }

 private:
  RowDecoder(const NgramTable& table, DequantizeFunction decode)
      : row_count_(table.row_count), row_width_(table.row_width), decode_(decode) {}

  int64_t row_count_;
  int64_t row_width_;
  DequantizeFunction decode_;
};

}  // namespace warpline
