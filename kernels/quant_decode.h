// Decodes blocks of every tensor type of GGUF files to f32, bit-exact (one rounding per value).
#pragma once

#include <cstdint>

#include "kernels/cpu/instruction_set.h"
#include "model/quant.h"

namespace warpline {

// Plain reference decoder; out[value_count]. `value_count` is a multiple of the type's block.
void DequantizeRow(QuantType type, const uint8_t* blocks, int64_t value_count, float* out);

// The same values, by SIMD where it pays, for one type and instruction set. Bit-equal to
// DequantizeRow (NaNs may differ in sign and payload). The processor must have the set: see
// DetectInstructionSet.
using DequantizeFunction = void (*)(const uint8_t* blocks, int64_t value_count, float* out);
DequantizeFunction FastDequantizer(QuantType type, InstructionSet set);

}  // namespace warpline
