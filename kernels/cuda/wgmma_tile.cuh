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
  static constexpr int kSliceBytes = sizeof(typename Format::Slice);  // in a lane's registers
  static constexpr bool kIsCopy = kType == QuantType::kF32 || kType == QuantType::kF16 ||
                                  kType == QuantType::kBF16;  // packed as halves
  // Pieces of which two at once are too many registers: the next one comes when half of this one
  // is decoded.
  static constexpr bool kIsLargePiece = kSliceBytes >= 64 && !kIsCopy;
  // Pieces of half the k take so many bytes that loads one piece ahead do not fill the memory's
  // latency; the feeder asks for them earlier. Elsewhere that only costs.
  static constexpr bool kIsPrefetched = Format::kShape.groups == 2;
  // Whether the sums of 128 tokens leave room for decoding in 112 registers. Some types have small
  // pieces, but take many registers on the way.
  static constexpr bool kFits128 = kSliceBytes <= 56 && kType != QuantType::kQ2K &&
                                   kType != QuantType::kQ3K && kType != QuantType::kQ5_0 &&
                                   kType != QuantType::kIQ4XS;
  static constexpr int kConsumers = kN > 128 || (kN == 128 && !kFits128) ? 2 : 4;
  static constexpr int kM = 64 * kConsumers;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kFeederRegisters = kConsumers == 2 ? 56 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 224 : 112;
  // With the sums of 128 tokens in 112 registers there is no room to decode ahead; four consumers
  // hide one another's waits instead.
  static constexpr bool kDecodesAhead = kN < 128 || kConsumers == 2;

  using Staging = EpilogueShape<kN, kConsumers, kFused>;
  static constexpr int kStageBytes = kN * 128;
  // For each item of the ring: its rows' scales, their weights, the item itself.
  static constexpr int kRowFactorBytes = kN * static_cast<int>(sizeof(float));
  static constexpr int kItemBytes = 2 * kRowFactorBytes + static_cast<int>(sizeof(TileItem));
  static constexpr int kBarrierBytes = 512;
  static constexpr int kFixedBytes =
      Format::kTableBytes + Staging::kBytes + kItemRing * kItemBytes + kBarrierBytes;
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
  uint32_t items;       // [ring] see kItemBytes
  uint32_t full;        // [stage] its bytes have arrived
  uint32_t empty;       // [stage] all consumers are done with it
  uint32_t item_empty;  // [ring] all consumers are done with the item
  uint32_t item_count;  // how many items there are

  __device__ __forceinline__ explicit WgmmaShared(const uint8_t* shared) {
    stages = SharedAddress(shared);
    staging = stages + Shape::kStages * Shape::kStageBytes + Shape::Format::kTableBytes;
    items = staging + Shape::Staging::kBytes;
    full = items + kItemRing * Shape::kItemBytes;
    empty = full + 8 * Shape::kStages;
    item_empty = empty + 8 * Shape::kStages;
    item_count = item_empty + 8 * kItemRing;
    static_assert(8 * (2 * Shape::kStages + kItemRing + 1) <= Shape::kBarrierBytes);
  }

  // Once, by one thread.
  __device__ __forceinline__ void Init(int count) const {
    for (int i = 0; i < Shape::kStages; ++i) {
      BarrierInit(full + 8 * i, 1);
      BarrierInit(empty + 8 * i, 4 * Shape::kConsumers);
    }
    for (int i = 0; i < kItemRing; ++i) BarrierInit(item_empty + 8 * i, 4 * Shape::kConsumers);
    BarrierInitFence();
    StoreShared(item_count, __int_as_float(count));
  }

  // The ring's place for the block's item `number`, counted from 0.
  __device__ __forceinline__ uint32_t ItemAt(uint32_t number) const {
    return items + number % kItemRing * Shape::kItemBytes;
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

// Announces an item to the consumers: its row factors and the item itself travel with its first
// stage, whose barrier gets all bytes.
template <typename Shape>
__device__ __forceinline__ void FeedItem(const GroupedArgs& args, int index, int first_row,
                                         uint32_t to, uint32_t tile_bytes, uint32_t full) {
  const uint32_t factor_bytes = tile_bytes / (128 / sizeof(float));
  uint32_t bytes = tile_bytes + sizeof(TileItem);
  if (args.row_scale != nullptr) bytes += factor_bytes;
  if (args.row_weight != nullptr) bytes += factor_bytes;
  BarrierExpect(full, bytes);
  BulkLoad(to + 2 * Shape::kRowFactorBytes, args.items + index, sizeof(TileItem), full);
  if (args.row_scale != nullptr) BulkLoad(to, args.row_scale + first_row, factor_bytes, full);
  if (args.row_weight != nullptr) {
    BulkLoad(to + Shape::kRowFactorBytes, args.row_weight + first_row, factor_bytes, full);
  }
}

// Where a lane's row block of an item lies, for asking for its pieces ahead; null for none.
template <typename Shape>
__device__ __forceinline__ const uint8_t* PrefetchBlock(const GroupedArgs& args,
                                                        const TileItem& item) {
  constexpr PackedShape kPacked = Shape::Format::kShape;
  constexpr int kBlocks = Shape::kM / kRowBlock;
  const int lane = ThreadIndex() % 32;
  const int block = item.row_tile * kBlocks + lane;
  if (lane >= kBlocks || block >= args.row_blocks) return nullptr;
  return args.weights + item.expert * args.expert_bytes + block * RowBlockBytes(kPacked, args.k);
}

// One warp. Its first lane feeds the tiles of every item, only as many rows as are live; each lane
// asks for the weights of a row block that the consumers will want when they come to that stage.
template <typename Shape>
__device__ __forceinline__ void FeedTiles(const GroupedArgs& args,
                                          const WgmmaShared<Shape>& shared) {
  constexpr PackedShape kPacked = Shape::Format::kShape;
  constexpr int kPairBytes = 2 * kPacked.slice_bytes + kPacked.super_bytes;
  constexpr int kPairSteps = kPacked.groups;  // stages of two slices
  RingCursor<Shape::kStages> stage;
  uint32_t number = 0;
#pragma unroll 1
  for (int index = blockIdx.x; index < *args.item_count; index += gridDim.x) {
    const TileItem item = args.items[index];
    const uint8_t* weights = PrefetchBlock<Shape>(args, item);
    const uint32_t bytes = static_cast<uint32_t>(RoundUp(item.rows, kTileRows)) * 128;
    const uint8_t* tile = args.x_tiles + static_cast<int64_t>(item.first_row) * 128;
    if (ThreadIndex() == 0) {
      BarrierWait(shared.item_empty + number % kItemRing * 8, (number / kItemRing + 1) % 2);
      BarrierWait(shared.empty + 8 * stage.slot, stage.parity ^ 1);
      FeedItem<Shape>(args, index, item.first_row, shared.ItemAt(number), bytes,
                      shared.full + 8 * stage.slot);
    }
#pragma unroll 1
    for (int step = 0; step < args.k / kTileK; ++step) {
      if (ThreadIndex() == 0) {
        if (step > 0) {
          BarrierWait(shared.empty + 8 * stage.slot, stage.parity ^ 1);
          BarrierExpect(shared.full + 8 * stage.slot, bytes);
        }
        BulkLoad(shared.stages + stage.slot * Shape::kStageBytes, tile, bytes,
                 shared.full + 8 * stage.slot);
        tile += static_cast<int64_t>(args.x_row_groups) * kTileBytes;
      }
      stage.Advance();
      __syncwarp();
      if (weights != nullptr && (Shape::kIsPrefetched ? step % kPairSteps == 0 : step == 0)) {
        const int left = args.k / kTileK - step;  // a last slice may be alone
        BulkPrefetch(weights, left < kPairSteps ? kPacked.slice_bytes : kPairBytes);
        weights += kPairBytes;
      }
    }
    ++number;
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

// Registers of a product must be defined before its fence, and sums used after its end; these keep
// the compiler from moving either across.
__device__ __forceinline__ void PinParts(uint32_t (&parts)[2][4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) asm volatile("" : "+r"(parts[i / 4][i % 4]));
}
template <int kCount>
__device__ __forceinline__ void PinSums(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i]));
}
// Where decoding is no more than a copy, it must be one: the piece's own registers are loaded anew
// while products still read their operands. `zero` is 0 in a way that no compiler knows.
__device__ __forceinline__ void CopyParts(uint32_t (&parts)[2][4], uint32_t zero) {
#pragma unroll
  for (int i = 0; i < 8; ++i) parts[i / 4][i % 4] ^= zero;
}

// Sums of one warpgroup's 64 weight rows times kN tokens over all of k. `slice` is the first piece.
template <typename Shape, int kN>
__device__ __forceinline__ void AddProducts(const WgmmaShared<Shape>& shared, const uint8_t* table,
                                            const PieceReader<typename Shape::Format>& weights,
                                            int k, typename Shape::Format::Slice& slice,
                                            RingCursor<Shape::kStages>& stage,
                                            float (&sums)[kN / 2]) {
  using Format = typename Shape::Format;
  constexpr int kGroups = Format::kShape.groups;
  constexpr bool kAhead = Shape::kDecodesAhead;
  // The group after which the next piece is loaded into registers of its own; -1 for before all.
  constexpr int kLoadAfter = !kAhead ? kGroups : Shape::kIsLargePiece ? kGroups / 2 - 1 : -1;
  const int slices = k / (kGroups * kGroupK);
  uint32_t parts[2][2][4];  // [group & 1][MMA step]
  uint32_t held = 0;        // barrier of the stage that running products still read
#pragma unroll 1
  for (int i = 0; i < slices; ++i) {
    typename Format::Slice next;
    if (kAhead && kLoadAfter < 0 && i + 1 < slices) next = weights.Load(i + 1);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const bool is_first = group % 2 == 0;  // of the stage's two groups
      Format::Decode(slice, table, group, parts[group % 2][0], parts[group % 2][1]);
      if (group == kLoadAfter && i + 1 < slices) next = weights.Load(i + 1);
      if constexpr (Shape::kIsCopy) CopyParts(parts[group % 2], k % kPadK);
      PinParts(parts[group % 2]);
      if constexpr (!kAhead) {
        if (is_first) continue;
        // The piece's registers are free again, and the products take longer than the load.
        if (group + 1 == kGroups && i + 1 < slices) slice = weights.Load(i + 1);
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
    if constexpr (kAhead) slice = next;
  }
  if constexpr (kAhead) {
    WgmmaWait<0>();
    if (threadIdx.x % 32 == 0) BarrierArrive(held);
  }
  PinSums(sums);
}

// Where this warp's weights of an item lie; rows beyond the matrix repeat its last block, and their
// results are not stored.
template <typename Shape>
__device__ __forceinline__ PieceReader<typename Shape::Format> FindWeights(const GroupedArgs& args,
                                                                           uint32_t ring_item) {
  constexpr PackedShape kPacked = Shape::Format::kShape;
  const uint32_t item = ring_item + 2 * Shape::kRowFactorBytes;
  const int expert = static_cast<int>(SharedWord(item));
  const int row_tile = static_cast<int>(SharedWord(item + 4));
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;  // among the consumers
  const int block = min(row_tile * (Shape::kM / kRowBlock) + warp, args.row_blocks - 1);
  return {args.weights + expert * args.expert_bytes + block * RowBlockBytes(kPacked, args.k),
          static_cast<int>(threadIdx.x) % 32};
}

// A consumer's way through the block's items.
template <typename Shape, int kN, bool kFused>
struct Consumer {
  using Format = typename Shape::Format;
  using Writer = StagingWriter<kN, Shape::kConsumers, kFused>;

  const GroupedArgs& args;
  const WgmmaShared<Shape>& shared;
  const uint8_t* table;
  RingCursor<Shape::kStages> stage;
  uint32_t number = 0;  // of the item
  PieceReader<Format> weights;
  typename Format::Slice slice;  // the item's first piece

  // Waits for the first stage of item `next`, and asks for its first weights.
  __device__ __forceinline__ void Open(uint32_t next) {
    BarrierWait(shared.full + 8 * stage.slot, stage.parity);
    weights = FindWeights<Shape>(args, shared.ItemAt(next));
    slice = weights.Load(0);
  }

  __device__ __forceinline__ void Run() {
    Open(0);
#pragma unroll 1
    for (int index = blockIdx.x;; index += gridDim.x) {
      float sums[kN / 2];
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) sums[i] = 0;
      AddProducts<Shape, kN>(shared, table, weights, args.k, slice, stage, sums);
      const bool is_last =
          index + static_cast<int>(gridDim.x) >= static_cast<int>(SharedWord(shared.item_count));
      // The next item's weights are on their way while this one's outputs are written.
      if (!is_last) Open(number + 1);
      Writer(shared.staging).Write(args, shared.ItemAt(number), number, sums);
      __syncwarp();
      if (threadIdx.x % 32 == 0) BarrierArrive(shared.item_empty + number % kItemRing * 8);
      if (is_last) return;
      ++number;
    }
  }
};

#endif  // WL_SM90A

// Launched with Shape::kThreads threads, Shape::kSharedBytes of shared memory and at most as many
// blocks as multiprocessors. The kernels of one product may follow one another with programmatic
// serialization: each lets the next one start as soon as multiprocessors are free, and ends after
// the one before it.
template <QuantType kType, int kN, bool kFused>
__global__ void __launch_bounds__(WgmmaShape<kType, kN, kFused>::kThreads, 1)
    WgmmaTile(const __grid_constant__ GroupedArgs args) {
#if defined(WL_SM90A)
  using Shape = WgmmaShape<kType, kN, kFused>;
  extern __shared__ __align__(1024) uint8_t memory[];
  AllowNextKernel();
  if (static_cast<int>(blockIdx.x) >= *args.item_count) return AwaitPreviousKernel();
  const WgmmaShared<Shape> shared(memory);
  uint8_t* const table = memory + Shape::kStages * Shape::kStageBytes;
  if (threadIdx.x == 0) shared.Init(*args.item_count);
  for (int i = threadIdx.x; i < Shape::Format::kTableBytes / 16; i += Shape::kThreads) {
    reinterpret_cast<uint4*>(table)[i] = static_cast<const uint4*>(args.table)[i];
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ReleaseRegisters<Shape::kFeederRegisters>();
    if (threadIdx.x < 32) {
      FeedTiles<Shape>(args, shared);
    } else {
      CarryOutputs<kN, Shape::kConsumers, kFused>(args, shared.staging);
    }
  } else {
    TakeRegisters<Shape::kConsumerRegisters>();
    Consumer<Shape, kN, kFused>{args, shared, table}.Run();
  }
  AwaitPreviousKernel();
#endif
}

}  // namespace warpline::cuda
