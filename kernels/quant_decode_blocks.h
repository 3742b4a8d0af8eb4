// All scalar block decoders, and the step from a QuantType to the decoder of its blocks.
#pragma once

#include "kernels/quant_decode_iq.h"
#include "kernels/quant_decode_k.h"
#include "kernels/quant_decode_simple.h"
#include "model/quant.h"

namespace warpline {

template <QuantType kType>
struct BlockOf;  // BlockOf<kType>::Type is the struct with kValues, kBytes and Decode.

#define WL_BLOCK_OF(name)              \
  template <>                          \
  struct BlockOf<QuantType::k##name> { \
    using Type = Block##name;          \
  }
WL_BLOCK_OF(F32);
WL_BLOCK_OF(F16);
WL_BLOCK_OF(BF16);
WL_BLOCK_OF(Q4_0);
WL_BLOCK_OF(Q4_1);
WL_BLOCK_OF(Q5_0);
WL_BLOCK_OF(Q5_1);
WL_BLOCK_OF(Q8_0);
WL_BLOCK_OF(Q1_0);
WL_BLOCK_OF(Q2_0);
WL_BLOCK_OF(MXFP4);
WL_BLOCK_OF(NVFP4);
WL_BLOCK_OF(TQ1_0);
WL_BLOCK_OF(TQ2_0);
WL_BLOCK_OF(Q2K);
WL_BLOCK_OF(Q3K);
WL_BLOCK_OF(Q4K);
WL_BLOCK_OF(Q5K);
WL_BLOCK_OF(Q6K);
WL_BLOCK_OF(IQ1S);
WL_BLOCK_OF(IQ1M);
WL_BLOCK_OF(IQ2XXS);
WL_BLOCK_OF(IQ2XS);
WL_BLOCK_OF(IQ2S);
WL_BLOCK_OF(IQ3XXS);
WL_BLOCK_OF(IQ3S);
WL_BLOCK_OF(IQ4NL);
WL_BLOCK_OF(IQ4XS);
#undef WL_BLOCK_OF

// Calls visitor.template Visit<kType>() for a weight type and returns its result; for the other
// types, which are no weights, visitor.NotAWeight().
template <typename Visitor>
auto VisitWeightType(QuantType type, const Visitor& visitor) {
  switch (type) {
#define WL_CASE(name)      \
  case QuantType::k##name: \
    return visitor.template Visit<QuantType::k##name>()
    WL_CASE(F32);
    WL_CASE(F16);
    WL_CASE(BF16);
    WL_CASE(Q4_0);
    WL_CASE(Q4_1);
    WL_CASE(Q5_0);
    WL_CASE(Q5_1);
    WL_CASE(Q8_0);
    WL_CASE(Q1_0);
    WL_CASE(Q2_0);
    WL_CASE(MXFP4);
    WL_CASE(NVFP4);
    WL_CASE(TQ1_0);
    WL_CASE(TQ2_0);
    WL_CASE(Q2K);
    WL_CASE(Q3K);
    WL_CASE(Q4K);
    WL_CASE(Q5K);
    WL_CASE(Q6K);
    WL_CASE(IQ1S);
    WL_CASE(IQ1M);
    WL_CASE(IQ2XXS);
    WL_CASE(IQ2XS);
    WL_CASE(IQ2S);
    WL_CASE(IQ3XXS);
    WL_CASE(IQ3S);
    WL_CASE(IQ4NL);
    WL_CASE(IQ4XS);
#undef WL_CASE
    case QuantType::kI8:
    case QuantType::kI16:
    case QuantType::kI32:
    case QuantType::kI64:
    case QuantType::kF64:
      break;
  }
  return visitor.NotAWeight();
}

}  // namespace warpline
