// The warpgroup products of attention: scores from queries and keys in shared memory, weighted
// values with the weights in registers. Device code of sm_90a only.
#pragma once

#include "kernels/cuda/wgmma_ops.cuh"

namespace warpline::cuda {

#if defined(WL_SM90A)

// Describes rows of 128 bytes at a shared address, 16-byte pieces swizzled by row & 7, groups of 8
// rows 1,024 bytes apart. `leading_bytes`: from 64 values of a transposed operand to the next 64.
__device__ __forceinline__ uint64_t RowsDescriptor(uint32_t shared, uint32_t leading_bytes) {
  constexpr uint64_t kGroupStride = 1024 >> 4;
  constexpr uint64_t kSwizzle128 = 1;
  return (static_cast<uint64_t>(shared & 0x3FFFF) >> 4) |
         static_cast<uint64_t>(leading_bytes >> 4) << 16 | kGroupStride << 32 | kSwizzle128 << 62;
}

// Keeps the compiler from moving uses of sums across the asynchronous products.
template <int kCount>
__device__ __forceinline__ void HoldSums(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// For 64 rows and kN columns; see Wgmma for where the sums lie.
//   Scores(d, q, k, false): d = q * transpose(k), both described rows of 16 values each
//   Scores(d, q, k, true): added to d
//   Values(d, weights, v): d += weights[64 x 16] * v, v as 16 described rows of kN values
template <int kN>
struct AttentionWgmma;

#define WL_TEN(t)                                                              \
  "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t \
  "7,"                                                                         \
  "%" #t "8, %" #t "9"
#define WL_SUMS4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define WL_SUMS16(i) WL_SUMS4(i), WL_SUMS4((i) + 4), WL_SUMS4((i) + 8), WL_SUMS4((i) + 12)
#define WL_SUMS32(i) WL_SUMS16(i), WL_SUMS16((i) + 16)
#define WL_SUMS64(i) WL_SUMS32(i), WL_SUMS32((i) + 32)
#define WL_SUMS96(i) WL_SUMS64(i), WL_SUMS32((i) + 64)
#define WL_SUMS128(i) WL_SUMS64(i), WL_SUMS64((i) + 64)
#define WL_ATTENTION_WGMMA(n, numbers, o0, o1, o2, o3, o4, sums)                                  \
  template <>                                                                                     \
  struct AttentionWgmma<n> {                                                                      \
    static __device__ __forceinline__ void Scores(float (&d)[(n) / 2], uint64_t q, uint64_t k,    \
                                                  bool add) {                                     \
      asm volatile("{.reg .pred add; setp.ne.b32 add, " o2                                        \
                   ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" numbers        \
                   "}, " o0 ", " o1 ", add, 1, 1, 0, 0;}"                                         \
                   : sums                                                                         \
                   : "l"(q), "l"(k), "r"(static_cast<int>(add)));                                 \
    }                                                                                             \
    static __device__ __forceinline__ void Values(float (&d)[(n) / 2], const uint32_t* weights,   \
                                                  uint64_t v) {                                   \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" numbers "}, {" o0   \
                   ", " o1 ", " o2 ", " o3 "}, " o4 ", 1, 1, 1, 1;"                               \
                   : sums                                                                         \
                   : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "l"(v)); \
    }                                                                                             \
  }

WL_ATTENTION_WGMMA(64, WL_TEN() "," WL_TEN(1) "," WL_TEN(2) ", %30, %31", "%32", "%33", "%34",
                   "%35", "%36", WL_SUMS32(0));
WL_ATTENTION_WGMMA(128,
                   WL_TEN() "," WL_TEN(1) "," WL_TEN(2) "," WL_TEN(3) "," WL_TEN(4) "," WL_TEN(
                       5) ", %60, %61, %62, %63",
                   "%64", "%65", "%66", "%67", "%68", WL_SUMS64(0));
WL_ATTENTION_WGMMA(192,
                   WL_TEN() "," WL_TEN(1) "," WL_TEN(2) "," WL_TEN(3) "," WL_TEN(4) "," WL_TEN(
                       5) "," WL_TEN(6) "," WL_TEN(7) "," WL_TEN(8) ", %90, %91, %92, %93, %94, "
                                                                    "%95",
                   "%96", "%97", "%98", "%99", "%100", WL_SUMS96(0));
WL_ATTENTION_WGMMA(256,
                   WL_TEN() "," WL_TEN(1) "," WL_TEN(2) "," WL_TEN(3) "," WL_TEN(4) "," WL_TEN(
                       5) "," WL_TEN(6) "," WL_TEN(7) "," WL_TEN(8) "," WL_TEN(9) "," WL_TEN(
                       10) "," WL_TEN(11) ", %120, %121, %122, %123, %124, %125, %126, %127",
                   "%128", "%129", "%130", "%131", "%132", WL_SUMS128(0));

#undef WL_ATTENTION_WGMMA
#undef WL_SUMS128
#undef WL_SUMS96
#undef WL_SUMS64
#undef WL_SUMS32
#undef WL_SUMS16
#undef WL_SUMS4
#undef WL_TEN

#endif  // WL_SM90A

}  // namespace warpline::cuda
