// Hopper's asynchronous building blocks as small device functions: barriers in shared memory, bulk
// copies, register budgets. Device code of sm_90a only.
#pragma once

#include <stdint.h>

// Set while compiling for sm_90a; elsewhere kernels of this family have empty bodies.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WL_SM90A 1
#endif

namespace warpline::cuda {

// Address of shared memory as the 32 bits that PTX wants.
__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

#if defined(WL_SM90A)

// A barrier in shared memory (8 bytes) that completes a phase after `arrivals`, and after the bytes
// that ExpectBytes announced.
__device__ __forceinline__ void BarrierInit(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Makes initialised barriers visible to bulk copies; before the block's first barrier.
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// One arrival that also announces `bytes` of bulk copies.
__device__ __forceinline__ void BarrierExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Waits until the phase of `parity` is complete; parity 1 of a fresh barrier is complete.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished_%=;\n"
      "bra again_%=;\n"
      "finished_%=:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Copies `bytes` (a multiple of 16, both addresses aligned to 16) to shared memory; `barrier` gets
// the bytes when they have arrived.
__device__ __forceinline__ void BulkLoad(uint32_t shared, const void* global, uint32_t bytes,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

// Asks for `bytes` (a multiple of 16) to be brought into L2.
__device__ __forceinline__ void BulkPrefetch(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// Under programmatic serialization: lets the next kernel of the stream start; waits for the end of
// the one before, with its memory visible.
__device__ __forceinline__ void AllowNextKernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void AwaitPreviousKernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Hands over between warps by one of the block's barriers 1 to 15: `threads` is how many arrive and
// wait together. What arriving threads have read and written comes before what waiting ones do.
__device__ __forceinline__ void NamedArrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void NamedWait(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Gives registers back, or takes them; all warps of a warpgroup together.
template <int kRegisters>
__device__ __forceinline__ void ReleaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Stores four 8x8 matrices of halves, transposed: lane 8 * i + r gives the address of 16 bytes that
// receive column r of matrix i.
__device__ __forceinline__ void StoreTransposed(uint32_t shared, uint32_t m0, uint32_t m1,
                                                uint32_t m2, uint32_t m3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
      "r"(m0), "r"(m1), "r"(m2), "r"(m3)
      : "memory");
}

#endif  // WL_SM90A

}  // namespace warpline::cuda
