// wgmma m64nNk16 with A from registers: 64 weight rows times N tokens, halves in, floats summed.
// Device code of sm_90a only.
#pragma once

#include <stdint.h>

#include "kernels/cuda/async_ops.cuh"

namespace warpline::cuda {

#if defined(WL_SM90A)

// Orders register writes before the next wgmma; also needed before the first.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending committed groups are still running.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Describes activation tiles at a shared address (aligned to 1,024): rows of 128 bytes, 16-byte
// pieces swizzled by row & 7, groups of 8 rows 1,024 bytes apart. The k16 step inside a tile is
// added in units of 16 bytes.
__device__ __forceinline__ uint64_t TileDescriptor(uint32_t shared) {
  constexpr uint64_t kLeading = 1;  // ignored for this swizzle
  constexpr uint64_t kGroupStride = 1024 >> 4;
  constexpr uint64_t kSwizzle128 = 1;
  return (static_cast<uint64_t>(shared & 0x3FFFF) >> 4) | kLeading << 16 | kGroupStride << 32 |
         kSwizzle128 << 62;
}

// sums[N / 2] of a lane: for each 8 tokens j, {row g: tokens 2t, 2t + 1; row g + 8: the same} at
// sums[4 * j], lane = 4 * g + t, rows counted from 16 * (warp of the warpgroup).
template <int kN>
struct Wgmma;

// Operand numbers "%t0, %t1, ... %t9", and the sums as read-write operands.
#define WL_TEN(t)                                                              \
  "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t \
  "7,"                                                                         \
  "%" #t "8, %" #t "9"
#define WL_SIXTY WL_TEN() "," WL_TEN(1) "," WL_TEN(2) "," WL_TEN(3) "," WL_TEN(4) "," WL_TEN(5)
#define WL_SUMS4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define WL_SUMS16(i) WL_SUMS4(i), WL_SUMS4((i) + 4), WL_SUMS4((i) + 8), WL_SUMS4((i) + 12)
#define WL_SUMS32(i) WL_SUMS16(i), WL_SUMS16((i) + 16)
#define WL_SUMS64(i) WL_SUMS32(i), WL_SUMS32((i) + 32)
#define WL_SUMS96(i) WL_SUMS64(i), WL_SUMS32((i) + 64)
#define WL_SUMS128(i) WL_SUMS64(i), WL_SUMS64((i) + 64)
#define WL_WGMMA(n, numbers, a, b, sums)                                                       \
  template <>                                                                                  \
  struct Wgmma<n> {                                                                            \
    static __device__ __forceinline__ void Add(float (&d)[(n) / 2], const uint32_t (&part)[4], \
                                               uint64_t tile) {                                \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" numbers "}, {" a \
                   "}, " b ", 1, 1, 1, 0;"                                                     \
                   : sums                                                                      \
                   : "r"(part[0]), "r"(part[1]), "r"(part[2]), "r"(part[3]), "l"(tile));       \
    }                                                                                          \
  }

WL_WGMMA(32, WL_TEN() ", %10, %11, %12, %13, %14, %15", "%16, %17, %18, %19", "%20", WL_SUMS16(0));
WL_WGMMA(64, WL_TEN() "," WL_TEN(1) "," WL_TEN(2) ", %30, %31", "%32, %33, %34, %35", "%36",
         WL_SUMS32(0));
WL_WGMMA(128, WL_SIXTY ", %60, %61, %62, %63", "%64, %65, %66, %67", "%68", WL_SUMS64(0));
WL_WGMMA(192,
         WL_SIXTY "," WL_TEN(6) "," WL_TEN(7) "," WL_TEN(8) ", %90, %91, %92, %93, %94, %95",
         "%96, %97, %98, %99", "%100", WL_SUMS96(0));
// clang-format off
WL_WGMMA(256,
         WL_SIXTY "," WL_TEN(6) "," WL_TEN(7) "," WL_TEN(8) "," WL_TEN(9) "," WL_TEN(10) ","
         WL_TEN(11) ", %120, %121, %122, %123, %124, %125, %126, %127",
         "%128, %129, %130, %131", "%132", WL_SUMS128(0));
// clang-format on

#undef WL_WGMMA
#undef WL_SIXTY
#undef WL_SUMS128
#undef WL_SUMS96
#undef WL_SUMS64
#undef WL_SUMS32
#undef WL_SUMS16
#undef WL_SUMS4
#undef WL_TEN

#endif  // WL_SM90A

}  // namespace warpline::cuda
