// Compiles hybrid-inl.h for both instruction sets.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_hybrid.cc"
#include "hwy/foreach_target.h"  // must come before the kernels

#include "kernels/cpu/hybrid-inl.h"

#if HWY_ONCE
namespace warpline {

const HybridKernels& GetHybridKernels(InstructionSet set) {
  static constexpr HybridKernels kAvx2 = N_AVX2::MakeHybridKernels();
  static constexpr HybridKernels kAvx512 = N_AVX3::MakeHybridKernels();
  return set == InstructionSet::kAvx512 ? kAvx512 : kAvx2;
}

}  // namespace warpline
#endif
