// Compiles attention-inl.h for both instruction sets.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_attention.cc"
#include "hwy/foreach_target.h"  // must come before the kernels

#include "kernels/cpu/attention-inl.h"

#if HWY_ONCE
namespace warpline {

const AttentionKernels& GetAttentionKernels(InstructionSet set) {
  static constexpr AttentionKernels kAvx2 = N_AVX2::MakeAttentionKernels();
  static constexpr AttentionKernels kAvx512 = N_AVX3::MakeAttentionKernels();
  return set == InstructionSet::kAvx512 ? kAvx512 : kAvx2;
}

}  // namespace warpline
#endif
