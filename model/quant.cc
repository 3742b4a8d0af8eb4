#include "model/quant.h"

#include "base/status.h"

namespace warpline {
namespace {

constexpr QuantTypeInfo kTypes[] = {
    {QuantType::kF32, "F32", 1, 4, true},
    {QuantType::kF16, "F16", 1, 2, true},
    {QuantType::kQ4_0, "Q4_0", 32, 18, true},
    {QuantType::kQ4_1, "Q4_1", 32, 20, true},
    {QuantType::kQ5_0, "Q5_0", 32, 22, true},
    {QuantType::kQ5_1, "Q5_1", 32, 24, true},
    {QuantType::kQ8_0, "Q8_0", 32, 34, true},
    {QuantType::kQ2K, "Q2_K", 256, 84, true},
    {QuantType::kQ3K, "Q3_K", 256, 110, true},
    {QuantType::kQ4K, "Q4_K", 256, 144, true},
    {QuantType::kQ5K, "Q5_K", 256, 176, true},
    {QuantType::kQ6K, "Q6_K", 256, 210, true},
    {QuantType::kIQ2XXS, "IQ2_XXS", 256, 66, true},
    {QuantType::kIQ2XS, "IQ2_XS", 256, 74, true},
    {QuantType::kIQ3XXS, "IQ3_XXS", 256, 98, true},
    {QuantType::kIQ1S, "IQ1_S", 256, 50, true},
    {QuantType::kIQ4NL, "IQ4_NL", 32, 18, true},
    {QuantType::kIQ3S, "IQ3_S", 256, 110, true},
    {QuantType::kIQ2S, "IQ2_S", 256, 82, true},
    {QuantType::kIQ4XS, "IQ4_XS", 256, 136, true},
    {QuantType::kI8, "I8", 1, 1, false},
    {QuantType::kI16, "I16", 1, 2, false},
    {QuantType::kI32, "I32", 1, 4, false},
    {QuantType::kI64, "I64", 1, 8, false},
    {QuantType::kF64, "F64", 1, 8, false},
    {QuantType::kIQ1M, "IQ1_M", 256, 56, true},
    {QuantType::kBF16, "BF16", 1, 2, true},
    {QuantType::kTQ1_0, "TQ1_0", 256, 54, true},
    {QuantType::kTQ2_0, "TQ2_0", 256, 66, true},
    {QuantType::kMXFP4, "MXFP4", 32, 17, true},
    {QuantType::kNVFP4, "NVFP4", 64, 36, true},
    {QuantType::kQ1_0, "Q1_0", 128, 18, true},
    {QuantType::kQ2_0, "Q2_0", 64, 18, true},
};

}  // namespace

absl::Span<const QuantTypeInfo> AllQuantTypes() { return kTypes; }

const QuantTypeInfo* FindQuantType(int64_t id) {
  for (const QuantTypeInfo& info : kTypes) {
    if (static_cast<int64_t>(info.type) == id) return &info;
  }
  return nullptr;
}

const QuantTypeInfo& InfoOf(QuantType type) {
  const QuantTypeInfo* const info = FindQuantType(static_cast<int64_t>(type));
  WL_CHECK(info != nullptr);
  return *info;
}

int64_t RowBytes(QuantType type, int64_t value_count) {
  const QuantTypeInfo& info = InfoOf(type);
  WL_CHECK(value_count % info.block_values == 0);
  return value_count / info.block_values * info.block_bytes;
}

}  // namespace warpline
