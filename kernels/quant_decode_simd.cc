// FastDequantizer: the vector decoders, compiled for each instruction set.
#include "kernels/quant_decode.h"

// Compiled for AVX2 and AVX-512 alone; the baseline of the build does not matter, because nothing
// here runs on it.
#define HWY_BASELINE_TARGETS HWY_AVX2
#define HWY_DISABLED_TARGETS (HWY_SCALAR | HWY_EMU128 | HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quant_decode_simd.cc"
#include "hwy/foreach_target.h"

#include "base/status.h"
#include "kernels/quant_decode_blocks.h"
#include "kernels/quant_decode_simd-inl.h"
#include "kernels/quant_decode_simd_iq-inl.h"
#include "kernels/quant_decode_simd_k-inl.h"
#include "kernels/quant_grids.h"

HWY_BEFORE_NAMESPACE();
namespace warpline {
namespace HWY_NAMESPACE {

struct StoringSink {
  float* out;
  HWY_INLINE void Take(int sixteenth, decode::Floats16 values) const {
    decode::StoreFloats(values, out + 16 * sixteenth);
  }
};

template <QuantType kType>
void DecodeRow(const uint8_t* blocks, int64_t value_count, float* out) {
  using Simd = decode::SimdBlock<kType>;
  using Scalar = typename BlockOf<kType>::Type;
  WL_CHECK(value_count % Scalar::kValues == 0);
  const QuantGrids& grids = HostQuantGrids();
  int64_t i = 0;
  for (; i + Simd::kValues <= value_count; i += Simd::kValues, blocks += Simd::kBytes) {
    StoringSink sink{out + i};
    Simd::Decode(blocks, grids, sink);
  }
  for (; i < value_count; i += Scalar::kValues, blocks += Scalar::kBytes) {  // plain floats only
    Scalar::Decode(blocks, grids, out + i);
  }
}

struct RowDecoder {
  template <QuantType kType>
  DequantizeFunction Visit() const {
    return &DecodeRow<kType>;
  }
  DequantizeFunction NotAWeight() const { return nullptr; }
};

DequantizeFunction RowDecoderOf(QuantType type) { return VisitWeightType(type, RowDecoder()); }

}  // namespace HWY_NAMESPACE
}  // namespace warpline
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace warpline {

DequantizeFunction FastDequantizer(QuantType type, InstructionSet set) {
  return set == InstructionSet::kAvx512 ? N_AVX3::RowDecoderOf(type) : N_AVX2::RowDecoderOf(type);
}

}  // namespace warpline
#endif  // HWY_ONCE
