// Compiles rows-inl.h for both instruction sets.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_rows.cc"
#include "hwy/foreach_target.h"  // must come before the kernels

#include "kernels/cpu/rows-inl.h"

#if HWY_ONCE
namespace warpline {

const RowKernels& GetRowKernels(InstructionSet set) {
  static constexpr RowKernels kAvx2 = N_AVX2::MakeRowKernels();
  static constexpr RowKernels kAvx512 = N_AVX3::MakeRowKernels();
  return set == InstructionSet::kAvx512 ? kAvx512 : kAvx2;
}

}  // namespace warpline
#endif
