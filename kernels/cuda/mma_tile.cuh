// Prompt tiles by mma.sync (sm_75 and newer): 128 weight rows by kN rows of activations a block.
// Four warps of 32 weight rows each decode their weights straight into A fragments; activation
// tiles come through a ring in shared memory. Included by the generated file of each type.
#pragma once

#include <vector>

#include "kernels/cuda/kernel_row.h"
#include "kernels/cuda/mma_ops.cuh"
#include "kernels/cuda/weight_format.h"

namespace warpline::cuda {

constexpr int kMmaTileWarps = 4;
constexpr int kMmaTileThreads = kMmaTileWarps * kWarpLanes;
constexpr int kMmaTileM = kMmaTileWarps * 2 * kRowBlock;

// Formats whose slices take so many registers that the largest tile must be smaller.
template <QuantType kType>
constexpr bool kHasWideSlices = sizeof(typename WeightFormat<kType>::Slice) > 48;

// What one instance needs of a multiprocessor.
template <QuantType kType, int kN>
struct MmaTileShape {
  static constexpr int kStages = 3;
  static constexpr int kStageBytes = kN * kTileK * 2;
  static constexpr int kTableBytes = WeightFormat<kType>::kTableBytes;
  static constexpr int kSharedBytes = kTableBytes + kStages * kStageBytes;
  // Registers for two sets of weights beside the sums, or for one that is refilled late.
  static constexpr bool kDoubleBuffer = kN < 64;
  // Blocks of a multiprocessor, as registers allow: looking weights up takes fewer than unpacking.
  static constexpr int kBlocks = kN > 64 ? 2 : kN < 64 ? 4 : kTableBytes >= 16384 ? 3 : 2;
};

#if __CUDA_ARCH__ >= 750

// One block's walk through its items.
template <QuantType kType, int kN, bool kFused>
class MmaTile {
  using Format = WeightFormat<kType>;
  using Slice = typename Format::Slice;
  using Shape = MmaTileShape<kType, kN>;
  static constexpr int kSubTiles = kN / 8;
  static constexpr int kGroups = Format::kShape.groups;
  static constexpr int kStepsPerSlice = kGroups * kGroupK / kTileK;
  static constexpr int kStagingStride =
      36;  // floats of a row of 32 outputs, against bank conflicts

 public:
  __device__ __forceinline__ MmaTile(const GroupedArgs& args, uint8_t* shared)
      : args_(args), table_(shared), ring_(shared + Shape::kTableBytes) {}

  __device__ __forceinline__ void Run() {
    for (int i = static_cast<int>(threadIdx.x) * 16; i < Shape::kTableBytes;
         i += kMmaTileThreads * 16) {
      CopyAsync16(SharedAddress(table_ + i), static_cast<const uint8_t*>(args_.table) + i);
    }
    CommitCopies();
    const int count = *args_.item_count;
    for (int i = static_cast<int>(blockIdx.x); i < count; i += static_cast<int>(gridDim.x)) {
      Compute(i);
    }
    WaitForCopies<0>();
  }

 private:
  // Read anew in each phase: what depends on it, such as a dozen pointers of a lane, would cost
  // registers that the sums need.
  static __device__ __forceinline__ int Thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
  }

  __device__ __forceinline__ void Compute(int index) {
    float sums[2][kSubTiles][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < kSubTiles; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[i][j][c] = 0;
      }
    }
    Multiply(args_.items[index], sums);
    __syncthreads();  // The ring becomes the place where results are put in order.
    const TileItem item = args_.items[index];  // There were no registers to keep it in.
    if constexpr (kFused) {
      StoreGated(item, sums);
    } else {
      StorePlain(item, sums);
    }
  }

  // Starts the copy of this thread's part of one k64 step, of `groups` live row groups; `x` is
  // where it begins in the tiles, in units of 16 bytes.
  __device__ __forceinline__ void StartCopy(uint32_t x, int groups, int step) const {
    const int thread = static_cast<int>(threadIdx.x);
    const uint8_t* const from = args_.x_tiles + static_cast<uint64_t>(x) * 16;
    const uint32_t to = ring_address_ + step % Shape::kStages * Shape::kStageBytes + thread * 16;
    constexpr int kBytesAtOnce = kMmaTileThreads * 16;  // two row groups
#pragma unroll
    for (int i = 0; i < Shape::kStageBytes / kBytesAtOnce; ++i) {
      if (2 * i + thread / 64 < groups) CopyAsync16(to + i * kBytesAtOnce, from + i * kBytesAtOnce);
    }
  }

  __device__ __forceinline__ void Multiply(const TileItem& item, float (&sums)[2][kSubTiles][4]) {
    constexpr PackedShape kShape = Format::kShape;
    // Offsets in units of 16 bytes rather than pointers: one register each.
    uint32_t weights[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // A row block beyond the matrix reads the last one; its results are not stored.
      const int row_block = min(FirstRowBlock(item, Thread()) + i, args_.row_blocks - 1);
      weights[i] = static_cast<uint32_t>(
          (item.expert * args_.expert_bytes + row_block * RowBlockBytes(kShape, args_.k)) / 16);
    }
    Slice now[2];
    Slice next[Shape::kDoubleBuffer ? 2 : 1];
    LoadSlices(weights, 0, now);
    __syncthreads();  // All warps are done with the ring.
    const int groups = (item.rows + 7) / 8;
    uint32_t x = static_cast<uint32_t>(item.first_row) * 8 + Thread();
#pragma unroll
    for (int step = 0; step < Shape::kStages - 1; ++step) {
      if (step < args_.k / kTileK) StartCopy(x, groups, step);
      CommitCopies();
      x += static_cast<uint32_t>(args_.x_row_groups) * (kTileBytes / 16);
    }
#pragma unroll 1
    for (int slice = 0; slice < args_.k / (kGroups * kGroupK); ++slice) {
      const bool has_next = slice + 1 < args_.k / (kGroups * kGroupK);
      if constexpr (Shape::kDoubleBuffer) {
        if (has_next) LoadSlices(weights, slice + 1, next);
      }
#pragma unroll
      for (int part = 0; part < kStepsPerSlice; ++part) {
        const int step = slice * kStepsPerSlice + part;
        WaitForCopies<Shape::kStages - 2>();
        __syncthreads();  // The step's tiles are there, and the oldest stage is free again.
        if (step + Shape::kStages - 1 < args_.k / kTileK) {
          StartCopy(x, groups, step + Shape::kStages - 1);
        }
        CommitCopies();
        x += static_cast<uint32_t>(args_.x_row_groups) * (kTileBytes / 16);
        const uint32_t tiles = LaneTiles(step);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t a[2][2][4];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            Format::Decode(now[i], table_, part * 2 + half, a[i][0], a[i][1]);
          }
          if constexpr (!Shape::kDoubleBuffer) {
            if (part == kStepsPerSlice - 1 && half == 1 && has_next) {
              LoadSlices(weights, slice + 1, now);
            }
          }
          // The second group of 32 k lies four pieces further, before the swizzle.
          MultiplyGroup(tiles ^ (half * 64), groups, a, sums);
        }
      }
      if constexpr (Shape::kDoubleBuffer) {
        now[0] = next[0];
        now[1] = next[1];
      }
    }
  }

  __device__ __forceinline__ void LoadSlices(const uint32_t (&weights)[2], int slice,
                                             Slice (&slices)[2]) const {
    constexpr PackedShape kShape = Format::kShape;
    const int offset = static_cast<int>(SliceOffset(kShape, slice));
    const int super = static_cast<int>(SliceOffset(kShape, slice & ~1)) + 2 * kShape.slice_bytes;
    const int lane = Thread() % kWarpLanes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint8_t* const block = args_.weights + static_cast<uint64_t>(weights[i]) * 16;
      slices[i] = Format::Load(block + offset, block + super, lane);
    }
  }

  // Where this lane's row of the first row group lies, for the matrices of the first 32 k.
  __device__ __forceinline__ uint32_t LaneTiles(int step) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    const int row = lane % 8;
    return ring_address_ + step % Shape::kStages * Shape::kStageBytes + row * 128 +
           (lane / 8 ^ row) * 16;
  }

  __device__ __forceinline__ void MultiplyGroup(uint32_t tiles, int groups,
                                                const uint32_t (&a)[2][2][4],
                                                float (&sums)[2][kSubTiles][4]) const {
    if (groups == kSubTiles) {
#pragma unroll
      for (int j = 0; j < kSubTiles; ++j) MultiplySubTile(tiles, j, a, sums);
    } else {
#pragma unroll
      for (int j = 0; j < kSubTiles; ++j) {
        if (j < groups) MultiplySubTile(tiles, j, a, sums);
      }
    }
  }

  __device__ __forceinline__ void MultiplySubTile(uint32_t tiles, int j,
                                                  const uint32_t (&a)[2][2][4],
                                                  float (&sums)[2][kSubTiles][4]) const {
    uint32_t b[4];
    LoadMatrices(tiles + j * kTileBytes, b);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      MultiplyAdd(sums[i][j], a[i][0], b[0], b[1]);
      MultiplyAdd(sums[i][j], a[i][1], b[2], b[3]);
    }
  }

  static __device__ __forceinline__ int FirstRowBlock(const TileItem& item, int thread) {
    return item.row_tile * (kMmaTileM / kRowBlock) + thread / kWarpLanes * 2;
  }

  // Gate and up are rows g and g + 8 of each row block. The tile's 64 outputs are one tile of h for
  // each row group: put in order in shared memory, then copied as it lies.
  __device__ __forceinline__ void StoreGated(const TileItem& item,
                                             const float (&sums)[2][kSubTiles][4]) const {
    const int thread = Thread();
    const int warp = thread / kWarpLanes;
    const int g = thread % kWarpLanes / 4;
    const int t = thread % 4;
    const int piece = warp / 2 * 4 + t;
    const uint32_t to = ring_address_ + g * 128 + (piece ^ g) * 16 + warp % 2 * 8;
#pragma unroll
    for (int j = 0; j < kSubTiles; ++j) {
      if (j * 8 >= item.rows) break;
      uint32_t pairs[2] = {0, 0};
      float values[2][2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = item.first_row + j * 8 + 2 * t + c;
        const bool is_live = j * 8 + 2 * t + c < item.rows;
        const float scale = is_live ? SumScale(args_, row) : 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          values[i][c] =
              is_live ? GatedOutput(args_, sums[i][j][c] * scale, sums[i][j][2 + c] * scale, row)
                      : 0;
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
        pairs[i] = TransposeMatrix(PackFloats(values[i][0], values[i][1]));
      asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to + j * kTileBytes), "r"(pairs[0]),
                   "r"(pairs[1])
                   : "memory");
    }
    __syncthreads();
    uint8_t* const tiles =
        args_.h_tiles +
        (static_cast<int64_t>(item.row_tile) * args_.h_row_groups + item.first_row / 8) *
            kTileBytes;
#pragma unroll 2
    for (int i = thread; i / 8 < item.rows; i += kMmaTileThreads) {
      *reinterpret_cast<uint4*>(tiles + i * 16) = *reinterpret_cast<const uint4*>(ring_ + i * 16);
    }
  }

  // Each warp puts its 32 outputs of eight rows in order, then stores 16 bytes a lane and access.
  __device__ __forceinline__ void StorePlain(const TileItem& item,
                                             const float (&sums)[2][kSubTiles][4]) const {
    const int thread = Thread();
    float* const staging =
        reinterpret_cast<float*>(ring_) + thread / kWarpLanes * kTileRows * kStagingStride;
    const int g = thread % kWarpLanes / 4;
    const int t = thread % 4;
    const int column = FirstRowBlock(item, thread) * kRowBlock + t * 8;
#pragma unroll
    for (int j = 0; j < kSubTiles; ++j) {
      if (j * 8 >= item.rows) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          staging[(2 * t + c % 2) * kStagingStride + i * kRowBlock + c / 2 * 8 + g] = sums[i][j][c];
        }
      }
      __syncwarp();
      if (j * 8 + g < item.rows) {
        StoreOutputs(args_, item.first_row + j * 8 + g, column,
                     staging + g * kStagingStride + t * 8);
      }
      __syncwarp();
    }
  }

  const GroupedArgs& args_;
  uint8_t* const table_;
  uint8_t* const ring_;
  const uint32_t ring_address_ = SharedAddress(ring_);
};

#endif  // __CUDA_ARCH__ >= 750

// The grid is any number of blocks; block b takes items b, b + grid, ...
template <QuantType kType, int kN, bool kFused>
__global__ void __launch_bounds__(kMmaTileThreads, MmaTileShape<kType, kN>::kBlocks)
    MmaTileKernel(const __grid_constant__ GroupedArgs args) {
#if __CUDA_ARCH__ >= 750
  extern __shared__ __align__(1024) uint8_t shared[];
  MmaTile<kType, kN, kFused>(args, shared).Run();
#endif
}

template <QuantType kType, int kN, bool kFused>
KernelRow MmaTileRow(const char* name) {
  return {.name = name,
          .policy = Policy::kMmaSync,
          .op = kFused ? Op::kGateUp : Op::kPlain,
          .type = kType,
          .n = kN,
          .m = kMmaTileM,
          .shared_bytes = MmaTileShape<kType, kN>::kSharedBytes,
          .threads = kMmaTileThreads,
          .min_capability = 75,
          .function = reinterpret_cast<const void*>(&MmaTileKernel<kType, kN, kFused>)};
}

// The prompt tiles of one type.
template <QuantType kType>
void AppendMmaTileRows(std::vector<KernelRow>& rows) {
  if constexpr (kHasWideSlices<kType>) {
    rows.push_back(MmaTileRow<kType, 96, true>("mma_tile_gate_up_96"));
    rows.push_back(MmaTileRow<kType, 96, false>("mma_tile_plain_96"));
  } else {
    rows.push_back(MmaTileRow<kType, 128, true>("mma_tile_gate_up_128"));
    rows.push_back(MmaTileRow<kType, 128, false>("mma_tile_plain_128"));
  }
  rows.push_back(MmaTileRow<kType, 64, true>("mma_tile_gate_up_64"));
  rows.push_back(MmaTileRow<kType, 64, false>("mma_tile_plain_64"));
  rows.push_back(MmaTileRow<kType, 16, true>("mma_tile_gate_up_16"));
  rows.push_back(MmaTileRow<kType, 16, false>("mma_tile_plain_16"));
}

}  // namespace warpline::cuda
