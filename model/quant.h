// Tensor types of GGUF files: ids, block sizes, names. (Formats: ggml; the decoders are in
// kernels/quant_decode.h.)
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace warpline {

enum class QuantType : int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2K = 10,
  kQ3K = 11,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kIQ2XXS = 16,
  kIQ2XS = 17,
  kIQ3XXS = 18,
  kIQ1S = 19,
  kIQ4NL = 20,
  kIQ3S = 21,
  kIQ2S = 22,
  kIQ4XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ1M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
  kQ1_0 = 41,
  kQ2_0 = 42,
};

struct QuantTypeInfo {
  QuantType type;
  const char* name;      // "IQ3_XXS"
  int32_t block_values;  // values in a block along the contiguous axis
  int32_t block_bytes;
  bool is_weight;  // may be a weight; I8 to I64 and F64 parse, but are refused as weights
};

// All types, in the order of their ids.
absl::Span<const QuantTypeInfo> AllQuantTypes();
// Null for removed, activation-only and unknown ids.
const QuantTypeInfo* FindQuantType(int64_t id);
const QuantTypeInfo& InfoOf(QuantType type);
// Bytes of `value_count` consecutive values; a multiple of the block.
int64_t RowBytes(QuantType type, int64_t value_count);

}  // namespace warpline
