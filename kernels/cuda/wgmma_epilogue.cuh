// How sums leave a wgmma kernel: consumers scale them (or apply SwiGLU), write them to a staging
// area in shared memory, token by token, and go on; carrier warps copy them to global memory.
// Included by wgmma_tile.cuh.
#pragma once

#include <stdint.h>

#include "kernels/cuda/async_ops.cuh"
#include "kernels/cuda/grouped_args.h"
#include "kernels/cuda/half_math.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/swiglu.cuh"

namespace warpline::cuda {

constexpr int kItemRing = 2;      // items that shared memory holds, with their row factors
constexpr int kCarrierWarps = 3;  // warps 1 to 3 of the first warpgroup

// The staging area: for each consumer kN tokens with its 64 rows as halves (fused: 32 outputs),
// padded so that neither side meets bank conflicts. A region is what is handed over at once: a
// consumer's area, or the 64 outputs of two.
template <int kN, int kConsumers, bool kFused>
struct EpilogueShape {
  static constexpr int kRowBytes = kFused ? 80 : 144;
  static constexpr int kAreaBytes = kN * kRowBytes + (kFused ? 64 : 0);
  static constexpr int kRegions = kFused ? kConsumers / 2 : kConsumers;
  static constexpr int kRegionAreas = kConsumers / kRegions;
  // Named barriers: a region has been filled (consumers arrive, carriers wait); a consumer's area
  // has been carried away (the other way round).
  static constexpr int kFilled = 1;
  static constexpr int kFilledThreads = 128 * kRegionAreas + 32 * kCarrierWarps;
  static constexpr int kFreed = kFilled + kRegions;
  static constexpr int kFreedThreads = 128 + 32 * kCarrierWarps;
  static constexpr int kBytes = kConsumers * kAreaBytes;
};

// Whether word w of piece p of a row of hidden tiles holds outputs 8 * w + 2 * p and the next: what
// warp w of a consumer has computed, 8 outputs a warp.
constexpr bool WordsComeFromWarps() {
  for (int position = 0; position < kGroupK; ++position) {
    const int piece = position / 8;
    const int word = position % 8 / 2;
    if (KOfPosition(position) != 8 * word + 2 * piece + position % 2) return false;
  }
  return true;
}
static_assert(WordsComeFromWarps());

#if defined(WL_SM90A)

// threadIdx.x, read anew: kept over long loops it would cost registers that are scarce there.
__device__ __forceinline__ int ThreadIndex() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

__device__ __forceinline__ float2 SharedFloat2(uint32_t address) {
  float2 value;
  asm("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address));
  return value;
}
__device__ __forceinline__ uint32_t SharedWord(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}
__device__ __forceinline__ uint16_t SharedHalf(uint32_t address) {
  uint16_t value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address));
  return value;
}
__device__ __forceinline__ uint4 SharedWords4(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address));
  return value;
}
__device__ __forceinline__ void StoreShared(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

// A consumer warp's side.
template <int kN, int kConsumers, bool kFused>
class StagingWriter {
 public:
  using Shape = EpilogueShape<kN, kConsumers, kFused>;

  __device__ __forceinline__ explicit StagingWriter(uint32_t staging) {
    const int thread = ThreadIndex() - 128;  // among the consumers
    group_ = thread / 128;
    lane_ = thread % 32;
    warp_ = thread / 32 % 4;
    area_ = staging + group_ * Shape::kAreaBytes;
  }

  // `item` is where the item's row_scale lies, followed by its row_weight and the TileItem;
  // `number` counts the block's items. See Wgmma for `sums`.
  __device__ __forceinline__ void Write(const GroupedArgs& args, uint32_t item, uint32_t number,
                                        const float (&sums)[kN / 2]) {
    if constexpr (kFused) {
      WriteFused(args, item, number > 0, sums);
    } else if (args.y_is_float) {
      WriteFloats(args, item, sums);
    } else {
      WriteHalves(args, item, number > 0, sums);
    }
  }

 private:
  // Factors of a lane's two tokens of each 8.
  struct Factors {
    bool has_scale;
    bool has_weight;
    float weight_scale;
    uint32_t scales;
    __device__ __forceinline__ float2 At(int j) const {
      float2 factor = {weight_scale, weight_scale};
      if (has_scale) {
        const float2 scale = SharedFloat2(scales + 32 * j);
        factor.x *= scale.x;
        factor.y *= scale.y;
      }
      if (has_weight) {
        const float2 weight = SharedFloat2(scales + 4 * kN + 32 * j);
        factor.x *= weight.x;
        factor.y *= weight.y;
      }
      return factor;
    }
  };

  __device__ __forceinline__ Factors MakeFactors(const GroupedArgs& args, uint32_t item) const {
    return {args.row_scale != nullptr, !kFused && args.row_weight != nullptr, args.weight_scale,
            item + lane_ % 4 * 8};
  }

  // `was_used`: whether something has been handed over before.
  __device__ __forceinline__ void AwaitFree(bool was_used) {
    if (was_used) NamedWait(Shape::kFreed + group_, Shape::kFreedThreads);
  }
  __device__ __forceinline__ void HandOver() {
    NamedArrive(Shape::kFilled + group_ / Shape::kRegionAreas, Shape::kFilledThreads);
  }

  // Four 8x8 matrices a store: 32 tokens of the warp's 8 outputs.
  __device__ __forceinline__ void WriteFused(const GroupedArgs& args, uint32_t item, bool was_used,
                                             const float (&sums)[kN / 2]) {
    const Factors factors = MakeFactors(args, item);
    const uint32_t to = area_ + lane_ * Shape::kRowBytes + warp_ * 16;
    float peak = 0;
    AwaitFree(was_used);
#pragma unroll
    for (int j0 = 0; j0 < kN / 8; j0 += 4) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 h = Outputs(args, factors, j0 + i, sums);
        peak = fmaxf(peak, fmaxf(fabsf(h.x), fabsf(h.y)));
        pairs[i] = PackSaturated(h.x, h.y);
      }
      StoreTransposed(to + j0 * 8 * Shape::kRowBytes, pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    HandOver();
    if (peak > kLargestHalf && args.overflow != nullptr) Report(args, item, factors, sums);
  }

  __device__ __forceinline__ float2 Outputs(const GroupedArgs& args, const Factors& factors, int j,
                                            const float (&sums)[kN / 2]) const {
    const float2 factor = factors.At(j);
    return {SwiGlu(sums[4 * j] * factor.x, sums[4 * j + 2] * factor.x * args.output_scale),
            SwiGlu(sums[4 * j + 1] * factor.y, sums[4 * j + 3] * factor.y * args.output_scale)};
  }

  // Marks the rows of which an output was beyond the largest half.
  __device__ __forceinline__ void Report(const GroupedArgs& args, uint32_t item,
                                         const Factors& factors, const float (&sums)[kN / 2]) {
    const int first_row = static_cast<int>(SharedWord(item + 8 * kN + 8));
    const int rows = static_cast<int>(SharedWord(item + 8 * kN + 12));
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const float2 h = Outputs(args, factors, j, sums);
      const int token = 8 * j + lane_ % 4 * 2;
      if (fabsf(h.x) > kLargestHalf && token < rows) {
        args.overflow[first_row + token] = 1;
      }
      if (fabsf(h.y) > kLargestHalf && token + 1 < rows) {
        args.overflow[first_row + token + 1] = 1;
      }
    }
  }

  // Four matrices a store: 16 tokens of the warp's 16 rows.
  __device__ __forceinline__ void WriteHalves(const GroupedArgs& args, uint32_t item, bool was_used,
                                              const float (&sums)[kN / 2]) {
    const Factors factors = MakeFactors(args, item);
    const uint32_t to =
        area_ + (lane_ / 16 * 8 + lane_ % 8) * Shape::kRowBytes + warp_ * 32 + lane_ / 8 % 2 * 16;
    AwaitFree(was_used);
#pragma unroll
    for (int j0 = 0; j0 < kN / 8; j0 += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 factor = factors.At(j0 + i);
        const float* sum = &sums[4 * (j0 + i)];
        pairs[2 * i] = PackFloats(sum[0] * factor.x, sum[1] * factor.y);
        pairs[2 * i + 1] = PackFloats(sum[2] * factor.x, sum[3] * factor.y);
      }
      StoreTransposed(to + j0 * 8 * Shape::kRowBytes, pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    HandOver();
  }

  // Straight to memory: eight lanes fill 32 bytes of a token's row.
  __device__ __forceinline__ void WriteFloats(const GroupedArgs& args, uint32_t item,
                                              const float (&sums)[kN / 2]) const {
    const Factors factors = MakeFactors(args, item);
    const int row_tile = static_cast<int>(SharedWord(item + 8 * kN + 4));
    const int first_row = static_cast<int>(SharedWord(item + 8 * kN + 8));
    const int rows = static_cast<int>(SharedWord(item + 8 * kN + 12));
    const int column = (row_tile * kConsumers + group_) * 64 + warp_ * 16 + lane_ / 4;
    const bool has_low = column < args.out_columns;
    const bool has_high = column + 8 < args.out_columns;
    const int64_t pitch = args.y_pitch == 0 ? args.out_columns : args.y_pitch;
    const auto store = [&args](float* to, float value) {
      *to = args.accumulate ? *to + value : value;
    };
    int token = lane_ % 4 * 2;
    float* out = static_cast<float*>(args.y) + (first_row + token) * pitch + column;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const float2 factor = factors.At(j);
      if (token < rows) {
        if (has_low) store(out, sums[4 * j] * factor.x);
        if (has_high) store(out + 8, sums[4 * j + 2] * factor.x);
      }
      if (token + 1 < rows) {
        if (has_low) store(out + pitch, sums[4 * j + 1] * factor.y);
        if (has_high) store(out + pitch + 8, sums[4 * j + 3] * factor.y);
      }
      token += 8;
      out += 8 * pitch;
    }
  }

  uint32_t area_;
  int group_;
  int warp_;
  int lane_;
};

// The carriers' side: 96 threads copy region after region.
template <int kN, int kConsumers, bool kFused>
struct StagingCarrier {
  using Shape = EpilogueShape<kN, kConsumers, kFused>;
  static constexpr int kCarriers = 32 * kCarrierWarps;

  // The region's 64 outputs as one tile column of h, in the tiles' order of k. `area` is where the
  // region starts in shared memory.
  __device__ __forceinline__ static void CarryTiles(const GroupedArgs& args, const TileItem& item,
                                                    int region, uint32_t area) {
    const int column = item.row_tile * Shape::kRegions + region;  // in units of 64 outputs
    if (column * 8 >= args.row_blocks) return;
    const int piece = (ThreadIndex() - 32) % 8;  // of 16 bytes in a row of 128
    int row = (ThreadIndex() - 32) / 8;
    uint32_t from = area + piece / 4 * Shape::kAreaBytes + piece % 4 * 4 + row * Shape::kRowBytes;
    uint8_t* const to = args.h_tiles + (static_cast<int64_t>(column) * args.h_row_groups +
                                        item.first_row / kTileRows) *
                                           kTileBytes;
    // Word w of a piece comes from warp w; see WordsComeFromWarps.
    const auto load = [](uint32_t at) -> uint4 {
      return {SharedWord(at), SharedWord(at + 16), SharedWord(at + 32), SharedWord(at + 48)};
    };
    const auto store = [to, piece](int at, const uint4& value) {
      *reinterpret_cast<uint4*>(to + at * 128 + ((piece ^ (at % kTileRows)) * 16)) = value;
    };
    constexpr int kStep = kCarriers / 8;
#pragma unroll 1
    for (; row < item.rows; row += 2 * kStep) {
      const bool has_second = row + kStep < item.rows;
      const uint4 first = load(from);
      const uint4 second = load(has_second ? from + kStep * Shape::kRowBytes : from);
      store(row, first);
      if (has_second) store(row + kStep, second);
      from += 2 * kStep * Shape::kRowBytes;
    }
  }

  // A region's 64 columns of y, halves.
  __device__ __forceinline__ static void CarryRows(const GroupedArgs& args, const TileItem& item,
                                                   int region, uint32_t area) {
    constexpr int kPieces = 8;  // of 16 bytes in a token's row
    const int column = (item.row_tile * kConsumers + region) * 64;
    const int live_bytes = (args.out_columns - column) * 2;  // may be more than a row
    const int64_t pitch = static_cast<int64_t>(args.out_columns) * 2;
    uint8_t* to = static_cast<uint8_t*>(args.y) + item.first_row * pitch + int64_t{2} * column;
    if (args.out_columns % 8 == 0) {
      constexpr int kStep = kCarriers / kPieces;
      const int offset = (ThreadIndex() - 32) % kPieces * 16;
      int row = (ThreadIndex() - 32) / kPieces;
      if (offset >= live_bytes) return;
      to += row * pitch + offset;
      uint32_t from = area + row * Shape::kRowBytes + offset;
#pragma unroll 1
      for (; row < item.rows; row += 2 * kStep) {
        const bool has_second = row + kStep < item.rows;
        const uint4 value = SharedWords4(from);
        const uint4 second = SharedWords4(has_second ? from + kStep * Shape::kRowBytes : from);
        *reinterpret_cast<uint4*>(to) = value;
        to += kStep * pitch;
        if (has_second) *reinterpret_cast<uint4*>(to) = second;
        to += kStep * pitch;
        from += 2 * kStep * Shape::kRowBytes;
      }
    } else {  // rows are not aligned: two bytes at a time, a row to a warp
      int row = (ThreadIndex() - 32) / 32;
      to += row * pitch;
      uint32_t from = area + row * Shape::kRowBytes;
#pragma unroll 1
      for (; row < item.rows; row += kCarrierWarps) {
#pragma unroll 1
        for (int at = ThreadIndex() % 32 * 2; at < min(live_bytes, 128); at += 64) {
          *reinterpret_cast<uint16_t*>(to + at) = SharedHalf(from + at);
        }
        to += kCarrierWarps * pitch;
        from += kCarrierWarps * Shape::kRowBytes;
      }
    }
  }
};

template <int kN, int kConsumers, bool kFused>
__device__ __forceinline__ void CarryOutputs(const GroupedArgs& args, uint32_t staging) {
  using Carrier = StagingCarrier<kN, kConsumers, kFused>;
  using Shape = typename Carrier::Shape;
  if (!kFused && args.y_is_float) return;  // the consumers store floats themselves
#pragma unroll 1
  for (int index = blockIdx.x; index < *args.item_count; index += gridDim.x) {
    const TileItem item = args.items[index];
#pragma unroll 1
    for (int region = 0; region < Shape::kRegions; ++region) {
      const uint32_t area = staging + region * Shape::kRegionAreas * Shape::kAreaBytes;
      NamedWait(Shape::kFilled + region, Shape::kFilledThreads);
      if constexpr (kFused) {
        Carrier::CarryTiles(args, item, region, area);
      } else {
        Carrier::CarryRows(args, item, region, area);
      }
      __syncwarp();
      // Nobody waits for the last hand-over.
      if (index + static_cast<int>(gridDim.x) >= *args.item_count) continue;
#pragma unroll
      for (int i = 0; i < Shape::kRegionAreas; ++i) {
        NamedArrive(Shape::kFreed + region * Shape::kRegionAreas + i, Shape::kFreedThreads);
      }
    }
  }
}

#endif  // WL_SM90A

}  // namespace warpline::cuda
