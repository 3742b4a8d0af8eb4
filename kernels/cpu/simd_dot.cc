// Compiles dot-inl.h for both instruction sets.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_dot.cc"
#include "hwy/foreach_target.h"  // must come before the kernels

#include "kernels/cpu/dot-inl.h"

#if HWY_ONCE
namespace warpline {

const DotKernels& GetDotKernels(InstructionSet set) {
  static constexpr DotKernels kAvx2 = N_AVX2::MakeDotKernels();
  static constexpr DotKernels kAvx512 = N_AVX3::MakeDotKernels();
  return set == InstructionSet::kAvx512 ? kAvx512 : kAvx2;
}

}  // namespace warpline
#endif
