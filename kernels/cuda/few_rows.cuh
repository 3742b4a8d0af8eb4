// The expert product of decode steps (sm_75 and newer): up to eight rows an item. All of k lies in
// one block: each warp owns 256 values of k, keeps their activations in registers, and streams its
// part of one row block of weights after the other through a few register slots that are refilled
// as soon as they are decoded. The parts are added through shared memory in a fixed order, so a
// row's result depends on nothing but the row. Included by the generated file of each type.
#pragma once

#include <vector>

#include "kernels/cuda/few_rows.h"
#include "kernels/cuda/kernel_row.h"
#include "kernels/cuda/mma_ops.cuh"
#include "kernels/cuda/weight_format.h"

namespace warpline::cuda {

template <QuantType kType>
struct FewRowsShape {
  using Format = WeightFormat<kType>;
  static constexpr int kGroups = Format::kShape.groups;                // of 32 k in a piece
  static constexpr int kPieces = kFewRowsWarpK / (kGroups * kGroupK);  // of a warp and row block
  static constexpr int kSliceBytes = static_cast<int>(sizeof(typename Format::Slice));
  // Pieces on their way or waiting to be decoded: two row blocks, one, or half of one, as registers
  // allow. (The thinnest slices need the most registers to be decoded.)
  static constexpr int kRowBlockBytes = kPieces * kSliceBytes;
  static constexpr bool kHoldsTwo = kSliceBytes > 20 && kRowBlockBytes <= 72;
  static constexpr int kSlots =
      kHoldsTwo ? 2 * kPieces : (kRowBlockBytes <= 160 ? kPieces : kPieces / 2);
  static constexpr int kUnroll = kSlots > kPieces ? kSlots / kPieces : 1;  // row blocks
  static constexpr int kSharedBytes = FewRowsSharedBytes(Format::kTableBytes, kFewRowsMaxWarps);
};

#if __CUDA_ARCH__ >= 750

template <QuantType kType, bool kFused>
class FewRows {
  using Format = WeightFormat<kType>;
  using Slice = typename Format::Slice;
  using Shape = FewRowsShape<kType>;
  static constexpr int kPieces = Shape::kPieces;
  static constexpr int kGroups = Shape::kGroups;
  static constexpr PackedShape kShape = Format::kShape;

 public:
  __device__ __forceinline__ FewRows(const GroupedArgs& args, uint8_t* shared)
      : args_(args),
        table_(shared),
        parts_(reinterpret_cast<float4*>(shared + Format::kTableBytes)),
        warps_(static_cast<int>(blockDim.x) / kWarpLanes) {}

  __device__ __forceinline__ void Run() {
    CopyTable();
    // Activations that are found through ids come with the items; others follow an earlier product,
    // whose items these are too. Then only the activations must be waited for.
    const bool has_new_items = args_.ids != nullptr;
    if (has_new_items) AwaitInput();
    // An equal share of all row blocks of all items, one after the other.
    const int64_t units = static_cast<int64_t>(*args_.item_count) * args_.row_blocks;
    const int first = static_cast<int>(units * blockIdx.x / gridDim.x);
    const int last = static_cast<int>(units * (blockIdx.x + 1) / gridDim.x);
    if (first == last) {
      // What comes next relies on the whole chain before it.
      if (!has_new_items) AwaitInput();
    } else if (args_.k <= warps_ * kFewRowsWarpK) {
      Stream(first, last, has_new_items);
    } else {
      if (!has_new_items) AwaitInput();
      WalkLongRows(first, last);
    }
    WaitForCopies<0>();
    // What comes next relies on the whole chain before it.
    if (args_.is_beside) WaitForPreviousGrid();
  }

 private:
  // The kernel behind this one may start when all before this one has ended, but for products that
  // this one runs beside: it may then run beside them too, if it reads nothing of theirs.
  __device__ __forceinline__ void AwaitInput() const {
    if (!args_.is_beside) WaitForPreviousGrid();
    LetNextGridStart();
  }
  static __device__ __forceinline__ int Thread() { return static_cast<int>(threadIdx.x); }
  // Read anew: formats with wide slices have no register to keep it in.
  static __device__ __forceinline__ int ThreadAnew() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
  }
  static __device__ __forceinline__ int Lane() { return Thread() % kWarpLanes; }
  static __device__ __forceinline__ int Warp() { return Thread() / kWarpLanes; }

  __device__ __forceinline__ void CopyTable() const {
    for (int i = static_cast<int>(threadIdx.x) * 16; i < Format::kTableBytes;
         i += static_cast<int>(blockDim.x) * 16) {
      CopyAsync16(SharedAddress(table_ + i), static_cast<const uint8_t*>(args_.table) + i);
    }
    CommitCopies();
  }

  // The warp's first piece of a row block.
  __device__ __forceinline__ const uint8_t* Weights(int expert, int row_block, int piece) const {
    constexpr PackedShape shape = kShape;
    return args_.weights + expert * args_.expert_bytes + row_block * RowBlockBytes(shape, args_.k) +
           SliceOffset(shape, piece);
  }

  // Units first to last - 1, where one round of the warps covers all of k.
  __device__ __forceinline__ void Stream(int first, int last, bool has_new_items) {
    constexpr PackedShape shape = kShape;
    constexpr int kSlots = Shape::kSlots;
    const int row_blocks = args_.row_blocks;
    const int live = args_.k / (kGroups * kGroupK) - Warp() * kPieces;  // pieces that exist
    const int block_bytes = static_cast<int>(RowBlockBytes(shape, args_.k));
    int item = first / row_blocks;
    int row_block = first % row_blocks;
    // Where weights are fetched from: the next `in_item` row blocks there, then the next item's.
    // The last unit is fetched again and again rather than tested for.
    int ahead_left = last - first;
    int in_item = min(ahead_left, row_blocks - row_block);
    const uint8_t* ahead = Weights(args_.items[item].expert, row_block, Warp() * kPieces);
    const auto advance = [&] {
      if (in_item > 1) {
        --in_item;
        --ahead_left;
        ahead += block_bytes;
      } else if (ahead_left > 1) {
        --ahead_left;
        in_item = min(ahead_left, row_blocks);
        const int ahead_item = (last - ahead_left) / row_blocks;
        ahead = Weights(args_.items[ahead_item].expert, 0, Warp() * kPieces);
      }
    };

    const int lane = Lane();
    Slice slots[kSlots];
#pragma unroll
    for (int d = 0; d < Shape::kUnroll; ++d) {
#pragma unroll
      for (int p = 0; p < kPieces && d * kPieces + p < kSlots; ++p) {
        if (p < live) LoadPiece(ahead, p, lane, slots[d * kPieces + p]);
      }
      if (kSlots >= kPieces) advance();
    }
    if (!has_new_items) AwaitInput();
    WaitForCopies<0>();
    __syncthreads();  // The table is there.

    const uint8_t* table = table_;
    asm volatile("" : "+l"(table));  // kept in a register rather than made anew
    for (int left = last - first; left > 0; ++item, row_block = 0) {
      const TileItem tile = args_.items[item];
      uint4 x[kPieces * kGroups];
      LoadActivations(tile, Warp() * kFewRowsWarpK, x);
      const int end = min(row_blocks, row_block + left);
      left -= end - row_block;
      const bool has_columns = Lane() % 4 * 2 < tile.rows;
      for (int i = row_block; i < end; i += kFewRowsBatch) {
        const int held = min(kFewRowsBatch, end - i);
        float4* part = OwnPart();
        for (int j = 0; j < held;) {
#pragma unroll
          for (int d = 0; d < Shape::kUnroll; ++d) {
            if (d > 0 && j >= held) break;
            float sums[4] = {0, 0, 0, 0};
            const uint8_t* const now = ahead;
            if (kSlots < kPieces) advance();
#pragma unroll
            for (int p = 0; p < kPieces; ++p) {
              Slice& slot = slots[(d * kPieces + p) % kSlots];
              if (p < live) AddPiece(slot, table, x, p, sums);
              constexpr int kAhead = kSlots < kPieces ? kSlots : 0;
              const int next = (p + kAhead) % kPieces;
              if (next < live) {
                LoadPiece(kAhead > 0 && p + kAhead < kPieces ? now : ahead, next, lane, slot);
              }
            }
            if (kSlots >= kPieces) advance();
            if (has_columns) *part = make_float4(sums[0], sums[1], sums[2], sums[3]);
            part += warps_ * kWarpLanes;
            ++j;
          }
        }
        FinishRowBlocks(tile, i, held);
      }
      if constexpr (Shape::kUnroll == 2) {
        if ((end - row_block) % 2 == 1) {
#pragma unroll
          for (int p = 0; p < kPieces; ++p) {
            const Slice other = slots[p];
            slots[p] = slots[kPieces + p];
            slots[kPieces + p] = other;
          }
        }
      }
    }
  }

  // The same where k needs several rounds: nothing is fetched ahead but the pieces of a round.
  __device__ __forceinline__ void WalkLongRows(int first, int last) {
    WaitForCopies<0>();
    __syncthreads();
    const int pieces = args_.k / (kGroups * kGroupK);
    for (int unit = first; unit < last; ++unit) {
      const TileItem tile = args_.items[unit / args_.row_blocks];
      const int row_block = unit % args_.row_blocks;
      float sums[4] = {0, 0, 0, 0};
      for (int piece = Warp() * kPieces; piece < pieces; piece += warps_ * kPieces) {
        uint4 x[kPieces * kGroups];
        LoadActivations(tile, piece * kGroups * kGroupK, x);
        const uint8_t* const weights = Weights(tile.expert, row_block, piece);
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          if (piece + p >= pieces) break;
          Slice slice;
          LoadPiece(weights, p, Lane(), slice);
          AddPiece(slice, table_, x, p, sums);
        }
      }
      *OwnPart() = make_float4(sums[0], sums[1], sums[2], sums[3]);
      FinishRowBlocks(tile, row_block, 1);
    }
  }

  __device__ __forceinline__ void LoadPiece(const uint8_t* weights, int p, int lane,
                                            Slice& slot) const {
    constexpr PackedShape shape = kShape;
    slot = Format::Load(weights + SliceOffset(shape, p),
                        weights + SliceOffset(shape, p & ~1) + 2 * shape.slice_bytes, lane);
  }

  // This lane's B fragments: eight consecutive values of row g in each group of 32 k.
  __device__ __forceinline__ void LoadActivations(const TileItem& item, int first_k,
                                                  uint4 (&x)[kPieces * kGroups]) const {
    const int g = Lane() / 4;
    const int k = first_k + Lane() % 4 * 8;
#pragma unroll
    for (uint4& piece : x) piece = make_uint4(0, 0, 0, 0);
    if (g >= item.rows) return;
    const int row = item.first_row + g;
    const int64_t source = args_.ids != nullptr ? args_.ids[row] : row;
    const uint16_t* const from = args_.x_rows + source * args_.k + k;
#pragma unroll
    for (int i = 0; i < kPieces * kGroups; ++i) {
      // From L2: the kernel before may have written it while this one was starting.
      if (k + i * kGroupK < args_.k)
        x[i] = __ldcg(reinterpret_cast<const uint4*>(from + i * kGroupK));
    }
  }

  static __device__ __forceinline__ void AddPiece(const Slice& slice, const uint8_t* table,
                                                  const uint4 (&x)[kPieces * kGroups], int p,
                                                  float (&sums)[4]) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      uint32_t a0[4];
      uint32_t a1[4];
      Format::Decode(slice, table, j, a0, a1);
      const uint4 b = x[p * kGroups + j];
      MultiplyAdd(sums, a0, b.x, b.y);
      MultiplyAdd(sums, a1, b.z, b.w);
    }
  }

  // Where this lane's part of a batch's first row block lies: [row block][warp][t][g], so that
  // lanes without live columns cost nothing. Batches alternate between two places.
  __device__ __forceinline__ float4* OwnPart() const {
    return parts_ + place_ + Warp() * kWarpLanes + Lane() % 4 * 8 + Lane() / 4;
  }

  // Adds the warps' parts of `held` row blocks from `row_block` on, one warp a row block, the warps
  // taking turns. One barrier: what is read here is written again two batches later, behind the
  // next one.
  __device__ __forceinline__ void FinishRowBlocks(const TileItem& item, int row_block, int held) {
    __syncthreads();
    int i = Warp() - turn_;
    if (i < 0) i += warps_;
    for (; i < held; i += warps_) {
      const float4* const parts =
          parts_ + place_ + i * warps_ * kWarpLanes + Lane() % 4 * 8 + Lane() / 4;
      float sums[4] = {0, 0, 0, 0};
      if (Lane() % 4 * 2 < item.rows) {
#pragma unroll 4
        for (int w = 0; w < warps_; ++w) {
          const float4 part = parts[w * kWarpLanes];
          sums[0] += part.x;
          sums[1] += part.y;
          sums[2] += part.z;
          sums[3] += part.w;
        }
      }
      if constexpr (kFused) {
        StoreGated(item, row_block + i, sums);
      } else {
        StorePlain(item, row_block + i, sums);
      }
    }
    turn_ += held;
    while (turn_ >= warps_) turn_ -= warps_;
    place_ = kFewRowsBatch * warps_ * kWarpLanes - place_;
  }

  // The scale of the sums of column 2 t + c; 0 where there is no such row.
  __device__ __forceinline__ float ColumnScale(const TileItem& item, int c) const {
    const int column = 2 * (Lane() % 4) + c;
    return column < item.rows ? SumScale(args_, item.first_row + column) : 0;
  }

  __device__ __forceinline__ void StoreGated(const TileItem& item, int row_block,
                                             const float (&sums)[4]) const {
    const int g = Lane() / 4;
    const int t = Lane() % 4;
    float values[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float scale = ColumnScale(item, c);
      values[c] = 2 * t + c < item.rows ? GatedOutput(args_, sums[c] * scale, sums[2 + c] * scale,
                                                      item.first_row + 2 * t + c)
                                        : 0;
    }
    const uint32_t pair = TransposeMatrix(PackFloats(values[0], values[1]));
    if (g >= item.rows) return;
    const int64_t row = item.first_row + g;
    const int columns = args_.row_blocks * (kRowBlock / 2);
    *reinterpret_cast<uint32_t*>(args_.h_rows + row * columns + row_block * (kRowBlock / 2) +
                                 2 * t) = pair;
  }

  __device__ __forceinline__ void StorePlain(const TileItem& item, int row_block,
                                             const float (&sums)[4]) const {
    const int thread = Shape::kSliceBytes > 48 ? ThreadAnew() : Thread();
    const int g = thread % kWarpLanes / 4;
    const int t = thread % 4;
    float values[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int column = 2 * t + c % 2;
      values[c] = sums[c] * ColumnScale(item, c % 2);
      if (args_.row_weight != nullptr && column < item.rows) {
        values[c] *= __ldg(args_.row_weight + item.first_row + column);
      }
    }
    if (args_.y_is_float) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = row_block * kRowBlock + c / 2 * 8 + g;
        const int64_t row = item.first_row + 2 * t + c % 2;
        if (2 * t + c % 2 < item.rows && column < args_.out_columns) {
          StoreFloat(args_, row, column, values[c]);
        }
      }
      return;
    }
    const uint32_t pairs[2] = {TransposeMatrix(PackFloats(values[0], values[1])),
                               TransposeMatrix(PackFloats(values[2], values[3]))};
    if (g >= item.rows) return;
    uint16_t* const y = static_cast<uint16_t*>(args_.y) +
                        static_cast<int64_t>(item.first_row + g) * args_.out_columns;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int column = row_block * kRowBlock + h * 8 + 2 * t;
      if (args_.out_columns % 2 == 0) {
        if (column < args_.out_columns) *reinterpret_cast<uint32_t*>(y + column) = pairs[h];
        continue;
      }
      if (column < args_.out_columns) y[column] = static_cast<uint16_t>(pairs[h]);
      if (column + 1 < args_.out_columns) y[column + 1] = static_cast<uint16_t>(pairs[h] >> 16);
    }
  }

  const GroupedArgs& args_;
  uint8_t* const table_;
  float4* const parts_;
  const int warps_;
  int turn_ = 0;   // the warp that adds the parts of the next batch's first row block
  int place_ = 0;  // where the next batch's parts lie
};

#endif  // __CUDA_ARCH__ >= 750

// Launch with FewRowsThreads(k) threads and FewRowsSharedBytes; the grid is any number of blocks.
template <QuantType kType, bool kFused>
__global__ void __launch_bounds__(kFewRowsMaxWarps* kWarpLanes, 1)
    FewRowsKernel(const __grid_constant__ GroupedArgs args) {
#if __CUDA_ARCH__ >= 750
  extern __shared__ __align__(1024) uint8_t shared[];
  FewRows<kType, kFused>(args, shared).Run();
#endif
}

template <QuantType kType, bool kFused>
KernelRow FewRowsRow(const char* name) {
  return {.name = name,
          .policy = Policy::kMmaSync,
          .op = kFused ? Op::kFewGateUp : Op::kFewPlain,
          .type = kType,
          .n = kFewRowsN,
          .m = kRowBlock,
          .shared_bytes = FewRowsShape<kType>::kSharedBytes,
          .threads = kFewRowsMaxWarps * kWarpLanes,
          .min_capability = 75,
          .function = reinterpret_cast<const void*>(&FewRowsKernel<kType, kFused>)};
}

// The decode kernels of one type.
template <QuantType kType>
void AppendFewRowsRows(std::vector<KernelRow>& rows) {
  rows.push_back(FewRowsRow<kType, true>("few_rows_gate_up"));
  rows.push_back(FewRowsRow<kType, false>("few_rows_plain"));
}

}  // namespace warpline::cuda
