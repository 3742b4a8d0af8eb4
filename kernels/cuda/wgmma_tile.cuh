// The expert product of Hopper: weights decoded in registers as operand A of wgmma, activation
// tiles brought to shared memory by bulk copies as operand B. One block per multiprocessor walks
// the items with a fixed stride. Its warpgroups divide the work:
//   0: warp 0 feeds activation tiles through a ring of stages; warps 1 to 3 carry finished outputs
//      from shared to global memory while the next item is computed;
//   1 and up (consumers): 64 weight rows each, times all tokens of the item.
#pragma once

#include <stdint.h>

#include "kernels/cuda/async_ops.cuh"
#include "kernels/cuda/grouped_args.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/weight_format.h"
#include "kernels/cuda/wgmma_epilogue.cuh"
#include "kernels/cuda/wgmma_ops.cuh"
#include "model/quant.h"

namespace warpline::cuda {

// Sizes of one instance. Four consumers decode best; two leave room for more tokens, or for
// formats whose pieces take many registers.
template <QuantType kType, int kN, bool kFused>
struct WgmmaShape {
  using Format = WeightFormat<kType>;
  static constexpr int kConsumers = kN > 128 || (kN == 128 && sizeof(typename Format::Slice) > 40)
                                        ? 2
                                        : 4;
  static constexpr int kM = 64 * kConsumers;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kFeederRegisters = kConsumers == 2 ? 56 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 224 : 112;
  // With the sums of 128 tokens in 112 registers there is no room to decode ahead; four consumers
  // hide one another's waits instead.
  static constexpr bool kDecodeAhead = !(kN == 128 && kConsumers == 4);

  using Staging = EpilogueShape<kN, kConsumers, kFused>;
  static constexpr int kStageBytes = kN * 128;
  static constexpr int kScaleBytes = 2 * kScaleRing * kN * static_cast<int>(sizeof(float));
  static constexpr int kBarrierBytes = 512;
  static constexpr int kFixedBytes =
      Format::kTableBytes + Staging::kBytes + kScaleBytes + kBarrierBytes;
  static constexpr int kMaxSharedBytes = 232448;  // 227 KB
  static constexpr int kFitting = (kMaxSharedBytes - kFixedBytes) / kStageBytes;
  static constexpr int kStages = kFitting > 8 ? 8 : kFitting;
  static_assert(kStages >= 3);
  static constexpr int kSharedBytes = kStages * kStageBytes + kFixedBytes;
};

#if defined(WL_SM90A)

// Shared addresses of a block.
template <typename Shape>
struct WgmmaShared {
  uint32_t stages;
  uint32_t staging;
  uint32_t scales;        // [ring] rows' scales, then their weights, kN floats each
  uint32_t full;          // [stage] its bytes have arrived
  uint32_t empty;         // [stage] all consumers are done with it
  uint32_t scale_empty;   // [ring] all consumers are done with these scales
  uint32_t staging_full;  // [region] consumers have written an output
  uint32_t staging_free;  // [region] it has been carried away

  __device__ __forceinline__ explicit WgmmaShared(const uint8_t* shared) {
    stages = SharedAddress(shared);
    staging = stages + Shape::kStages * Shape::kStageBytes + Shape::Format::kTableBytes;
    scales = staging + Shape::Staging::kBytes;
    full = scales + Shape::kScaleBytes;
    empty = full + 8 * Shape::kStages;
    scale_empty = empty + 8 * Shape::kStages;
    staging_full = scale_empty + 8 * kScaleRing;
    staging_free = staging_full + 8 * Shape::Staging::kRegions;
    static_assert(8 * (2 * Shape::kStages + kScaleRing + 2 * Shape::Staging::kRegions) <=
                  Shape::kBarrierBytes);
  }

  __device__ __forceinline__ void InitBarriers() const {
    for (int i = 0; i < Shape::kStages; ++i) {
      BarrierInit(full + 8 * i, 1);
      BarrierInit(empty + 8 * i, 4 * Shape::kConsumers);
    }
    for (int i = 0; i < kScaleRing; ++i) BarrierInit(scale_empty + 8 * i, 4 * Shape::kConsumers);
    for (int i = 0; i < Shape::Staging::kRegions; ++i) {
      BarrierInit(staging_full + 8 * i, Shape::Staging::kWriters);
      BarrierInit(staging_free + 8 * i, kCarrierWarps);
    }
    BarrierInitFence();
  }
};

// Which slot of a ring comes next, and the parity that its barriers have then.
template <int kSize>
struct RingCursor {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++slot == kSize) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// One thread: the tiles of every item, only as many rows as are live.
template <typename Shape>
__device__ __forceinline__ void FeedTiles(const GroupedArgs& args,
                                          const WgmmaShared<Shape>& shared) {
  const int steps = args.k / kTileK;
  const int item_count = *args.item_count;
  RingCursor<Shape::kStages> stage;
  RingCursor<kScaleRing> scale;
  for (int index = blockIdx.x; index < item_count; index += gridDim.x) {
    const TileItem item = args.items[index];
    const int live = static_cast<int>(RoundUp(item.rows, kTileRows));
    const uint8_t* tile =
        args.x_tiles + static_cast<int64_t>(item.first_row / kTileRows) * kTileBytes;
    const uint32_t scale_bytes = live * static_cast<int>(sizeof(float));
    for (int step = 0; step < steps; ++step) {
      const uint32_t full = shared.full + 8 * stage.slot;
      uint32_t bytes = live * 128;
      BarrierWait(shared.empty + 8 * stage.slot, stage.parity ^ 1);
      if (step == 0) {
        // The rows' factors travel with the first stage.
        BarrierWait(shared.scale_empty + 8 * scale.slot, scale.parity ^ 1);
        const uint32_t to = shared.scales + scale.slot * Shape::kScaleBytes / kScaleRing;
        const bool has_weight = args.row_weight != nullptr;
        const bool has_scale = args.row_scale != nullptr;
        BarrierExpect(full, bytes + (has_scale ? scale_bytes : 0) + (has_weight ? scale_bytes : 0));
        if (has_scale) BulkLoad(to, args.row_scale + item.first_row, scale_bytes, full);
        if (has_weight) {
          BulkLoad(to + Shape::kScaleBytes / kScaleRing / 2, args.row_weight + item.first_row,
                   scale_bytes, full);
        }
        scale.Advance();
      } else {
        BarrierExpect(full, bytes);
      }
      BulkLoad(shared.stages + stage.slot * Shape::kStageBytes, tile, bytes, full);
      tile += static_cast<int64_t>(args.x_row_groups) * kTileBytes;
      stage.Advance();
    }
  }
}

// The pieces of one row block, in order.
template <typename Format>
struct PieceReader {
  const uint8_t* pieces;
  int lane;
  __device__ __forceinline__ typename Format::Slice Load(int slice) const {
    constexpr PackedShape kShape = Format::kShape;
    constexpr int kPairBytes = 2 * kShape.slice_bytes + kShape.super_bytes;
    const uint8_t* pair = pieces + static_cast<int64_t>(slice >> 1) * kPairBytes;
    return Format::Load(pair + (slice & 1) * kShape.slice_bytes, pair + 2 * kShape.slice_bytes,
                        lane);
  }
};

// Sums of one warpgroup's 64 weight rows times kN tokens over all of k.
template <typename Shape, int kN>
__device__ __forceinline__ void AddProducts(const WgmmaShared<Shape>& shared, const uint8_t* table,
                                            const PieceReader<typename Shape::Format>& weights,
                                            int k, RingCursor<Shape::kStages>& stage,
                                            float (&sums)[kN / 2]) {
  using Format = typename Shape::Format;
  constexpr int kGroups = Format::kShape.groups;
  const int slices = k / (kGroups * kGroupK);
  uint32_t parts[2][2][4];  // [group & 1][MMA step]
  typename Format::Slice slice = weights.Load(0);
  uint32_t held = 0;  // barrier of the stage that running products still read
  for (int i = 0; i < slices; ++i) {
    typename Format::Slice next;
    if (i + 1 < slices) next = weights.Load(i + 1);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const bool is_first = group % 2 == 0;  // of the stage's two groups
      Format::Decode(slice, table, group, parts[group % 2][0], parts[group % 2][1]);
      if constexpr (!Shape::kDecodeAhead) {
        if (is_first) continue;
        BarrierWait(shared.full + 8 * stage.slot, stage.parity);
        const uint64_t tile = TileDescriptor(shared.stages + stage.slot * Shape::kStageBytes);
        WgmmaFence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          Wgmma<kN>::Add(sums, parts[step / 2][step % 2], tile + 2 * step);
        }
        WgmmaCommit();
        WgmmaWait<0>();
        if (threadIdx.x % 32 == 0) BarrierArrive(shared.empty + 8 * stage.slot);
        stage.Advance();
      } else {
        if (is_first) BarrierWait(shared.full + 8 * stage.slot, stage.parity);
        const uint64_t tile = TileDescriptor(shared.stages + stage.slot * Shape::kStageBytes);
        WgmmaFence();
        Wgmma<kN>::Add(sums, parts[group % 2][0], tile + (is_first ? 0 : 4));
        Wgmma<kN>::Add(sums, parts[group % 2][1], tile + (is_first ? 2 : 6));
        WgmmaCommit();
        WgmmaWait<1>();
        if (is_first) {
          if (held != 0 && threadIdx.x % 32 == 0) BarrierArrive(held);
        } else {
          held = shared.empty + 8 * stage.slot;
          stage.Advance();
        }
      }
    }
    slice = next;
  }
  if constexpr (Shape::kDecodeAhead) {
    WgmmaWait<0>();
    if (threadIdx.x % 32 == 0) BarrierArrive(held);
  }
}

template <typename Shape, int kN, bool kFused>
__device__ __forceinline__ void Consume(const GroupedArgs& args, const WgmmaShared<Shape>& shared,
                                        const uint8_t* table) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
  const int group = threadIdx.x / 128 - 1;
  constexpr PackedShape kPacked = Shape::Format::kShape;
  const int64_t block_bytes = RowBlockBytes(kPacked, args.k);
  const int item_count = *args.item_count;
  RingCursor<Shape::kStages> stage;
  RingCursor<kScaleRing> scale;
  StagingWriter<kN, Shape::kConsumers, kFused> writer(shared.staging, shared.staging_full,
                                                      shared.staging_free, group, warp, lane);
  for (int index = blockIdx.x; index < item_count; index += gridDim.x) {
    const TileItem item = args.items[index];
    // Rows beyond the matrix repeat its last block; their results are not stored.
    const int block =
        min(item.row_tile * (Shape::kM / kRowBlock) + group * 4 + warp, args.row_blocks - 1);
    const PieceReader<typename Shape::Format> weights = {
        args.weights + item.expert * args.expert_bytes + block * block_bytes, lane};
    float sums[kN / 2];
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) sums[i] = 0;
    AddProducts<Shape, kN>(shared, table, weights, args.k, stage, sums);
    writer.Write(args, item, shared.scales + scale.slot * Shape::kScaleBytes / kScaleRing, sums);
    __syncwarp();
    if (lane == 0) BarrierArrive(shared.scale_empty + 8 * scale.slot);
    scale.Advance();
  }
}

#endif  // WL_SM90A

// Launched with Shape::kThreads threads, Shape::kSharedBytes of shared memory and at most as many
// blocks as multiprocessors.
template <QuantType kType, int kN, bool kFused>
__global__ void __launch_bounds__(WgmmaShape<kType, kN, kFused>::kThreads, 1)
    WgmmaTile(const __grid_constant__ GroupedArgs args) {
#if defined(WL_SM90A)
  using Shape = WgmmaShape<kType, kN, kFused>;
  extern __shared__ __align__(1024) uint8_t memory[];
  if (blockIdx.x >= *args.item_count) return;
  const WgmmaShared<Shape> shared(memory);
  uint8_t* const table = memory + Shape::kStages * Shape::kStageBytes;
  if (threadIdx.x == 0) shared.InitBarriers();
  for (int i = threadIdx.x; i < Shape::Format::kTableBytes / 16; i += Shape::kThreads) {
    reinterpret_cast<uint4*>(table)[i] = static_cast<const uint4*>(args.table)[i];
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ReleaseRegisters<Shape::kFeederRegisters>();
    if (threadIdx.x == 0) {
      FeedTiles<Shape>(args, shared);
    } else if (threadIdx.x >= 32) {
      CarryOutputs<kN, Shape::kConsumers, kFused>(args, shared.staging, shared.staging_full,
                                                  shared.staging_free);
    }
  } else {
    TakeRegisters<Shape::kConsumerRegisters>();
    Consume<Shape, kN, kFused>(args, shared, table);
  }
#endif
}

}  // namespace warpline::cuda
