// The expert product through the WMMA interface: what sm_70 has, compiled for every architecture,
// and the second opinion on the other policies. Simple rather than fast: each warp decodes 16
// weight rows x 64 k into shared memory, multiplies them with all rows of the item, and the results
// go through shared memory too, since the interface hides where a lane's sums lie. Included by the
// generated file of each type.
#pragma once

#include <mma.h>

#include <vector>

#include "kernels/cuda/few_rows.h"
#include "kernels/cuda/kernel_row.h"
#include "kernels/cuda/mma_ops.cuh"
#include "kernels/cuda/weight_format.h"

namespace warpline::cuda {

constexpr int kWmma = 16;                // M, N and K of one WMMA product
constexpr int kWmmaStride = kTileK + 8;  // halves of a row in shared memory
constexpr int kWmmaPromptN = 64;
constexpr int kWmmaPromptWarps = 4;
constexpr int kWmmaPromptM = kWmmaPromptWarps * kRowBlock;
constexpr int kWmmaOutStride = kWmmaPromptM + 4;  // floats of a row of prompt outputs

// Bytes of shared memory: a row of weights or activations, a warp's weights. Decode launches give
// each warp what FewRowsSharedBytes counts for it.
constexpr int kWmmaRowBytes = kWmmaStride * 2;
constexpr int kWmmaWarpBytes = kRowBlock * kWmmaRowBytes;
constexpr int kWmmaFewWarpBytes = FewRowsSharedBytes(0, 1);
static_assert(kWmmaWarpBytes <= kWmmaFewWarpBytes);
constexpr int kWmmaPromptBytes = kWmmaPromptN * kWmmaRowBytes + kWmmaPromptWarps * kWmmaWarpBytes;
static_assert(kWmmaPromptN * kWmmaOutStride * 4 <= kWmmaPromptBytes);

#if __CUDA_ARCH__ >= 700

// kFew: rows through ids and in natural order, n8 items, any number of warps; else activation
// tiles, and four warps.
template <QuantType kType, bool kFused, bool kFew>
class WmmaTile {
  using Format = WeightFormat<kType>;
  static constexpr int kN = kFew ? kWmma : kWmmaPromptN;
  static constexpr int kGroups = Format::kShape.groups;
  using Sums = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, kWmma, kWmma, kWmma, float>;

 public:
  __device__ __forceinline__ WmmaTile(const GroupedArgs& args, uint8_t* shared)
      : args_(args),
        table_(shared),
        x_(reinterpret_cast<__half*>(shared + Format::kTableBytes)),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % kWarpLanes),
        warp_(thread_ / kWarpLanes),
        warps_(static_cast<int>(blockDim.x) / kWarpLanes),
        w_(reinterpret_cast<__half*>(shared + Format::kTableBytes + kN * kWmmaRowBytes +
                                     warp_ * (kFew ? kWmmaFewWarpBytes : kWmmaWarpBytes))) {}

  __device__ __forceinline__ void Run() {
    for (int i = thread_ * 16; i < Format::kTableBytes; i += static_cast<int>(blockDim.x) * 16) {
      *reinterpret_cast<uint4*>(table_ + i) =
          __ldg(reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(args_.table) + i));
    }
    WaitForPreviousGrid();
    LetNextGridStart();
    // An item of a decode step stands for all weight rows.
    const int parts = kFew ? (args_.row_blocks + warps_ - 1) / warps_ : 1;
    const int count = *args_.item_count * parts;
    for (int i = static_cast<int>(blockIdx.x); i < count; i += static_cast<int>(gridDim.x)) {
      const TileItem item = args_.items[i / parts];
      const int row_block = (kFew ? i % parts : item.row_tile) * warps_ + warp_;
      Compute(item, row_block);
    }
  }

 private:
  __device__ __forceinline__ void Compute(const TileItem& item, int row_block) {
    constexpr PackedShape kShape = Format::kShape;
    const uint8_t* const weights =
        args_.weights + item.expert * args_.expert_bytes +
        min(row_block, args_.row_blocks - 1) * RowBlockBytes(kShape, args_.k);
    Sums sums[kN / kWmma];
#pragma unroll
    for (auto& fragment : sums) nvcuda::wmma::fill_fragment(fragment, 0.0f);
    for (int slice = 0; slice < args_.k / (kGroups * kGroupK); ++slice) {
      const auto registers =
          Format::Load(weights + SliceOffset(kShape, slice),
                       weights + SliceOffset(kShape, slice & ~1) + 2 * kShape.slice_bytes, lane_);
#pragma unroll
      for (int part = 0; part < kGroups * kGroupK / kTileK; ++part) {
        __syncthreads();  // The step before is done with shared memory.
        StoreWeights(registers, part);
        LoadActivations(item, slice * (kGroups * kGroupK / kTileK) + part);
        __syncthreads();
        MultiplyStep(sums);
      }
    }
    __syncthreads();
    if constexpr (kFew) {
      StoreRows(item, row_block, sums);
    } else {
      StoreTile(item, sums);
    }
  }

  // Two groups of 32 k of this warp's weight rows, k in the order of the MMA columns.
  __device__ __forceinline__ void StoreWeights(const typename Format::Slice& registers, int part) {
    const int g = lane_ / 4;
    const int t = lane_ % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t steps[2][4];
      Format::Decode(registers, table_, part * 2 + half, steps[0], steps[1]);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t* const row =
            reinterpret_cast<uint32_t*>(w_ + (g + 8 * h) * kWmmaStride) + half * (kGroupK / 2);
#pragma unroll
        for (int piece = 0; piece < 4; ++piece) {
          row[piece * 4 + t] = steps[piece / 2][piece % 2 * 2 + h];
        }
      }
    }
  }

  // 64 k of the item's rows in the same order of k; zeros where there is no row.
  __device__ __forceinline__ void LoadActivations(const TileItem& item, int step) {
    for (int i = thread_; i < kN * 8; i += static_cast<int>(blockDim.x)) {
      const int n = i / 8;
      const int piece = i % 8;
      uint4 value = make_uint4(0, 0, 0, 0);
      if (n < item.rows) value = LoadPiece(item.first_row + n, step, piece);
      uint32_t* const row = reinterpret_cast<uint32_t*>(x_ + n * kWmmaStride);
      if constexpr (kFew) {
        // Lane t's eight consecutive values, one pair to each piece of their group.
        uint32_t* const to = row + piece / 4 * (kGroupK / 2) + piece % 4;
        to[0] = value.x;
        to[4] = value.y;
        to[8] = value.z;
        to[12] = value.w;
      } else {
        *reinterpret_cast<uint4*>(row + piece * 4) = value;
      }
    }
  }

  __device__ __forceinline__ uint4 LoadPiece(int row, int step, int piece) const {
    if constexpr (kFew) {
      const int64_t source = args_.ids != nullptr ? args_.ids[row] : row;
      return __ldcg(reinterpret_cast<const uint4*>(args_.x_rows + source * args_.k + step * kTileK +
                                                   piece * 8));
    } else {
      const int64_t tile = static_cast<int64_t>(step) * args_.x_row_groups + row / kTileRows;
      return *reinterpret_cast<const uint4*>(args_.x_tiles + tile * kTileBytes +
                                             row % kTileRows * 128 +
                                             (piece ^ row % kTileRows) * 16);
    }
  }

  __device__ __forceinline__ void MultiplyStep(Sums (&sums)[kN / kWmma]) {
    namespace wmma = nvcuda::wmma;
#pragma unroll
    for (int k = 0; k < kTileK; k += kWmma) {
      wmma::fragment<wmma::matrix_a, kWmma, kWmma, kWmma, __half, wmma::row_major> a;
      wmma::load_matrix_sync(a, w_ + k, kWmmaStride);
#pragma unroll
      for (int j = 0; j < kN / kWmma; ++j) {
        wmma::fragment<wmma::matrix_b, kWmma, kWmma, kWmma, __half, wmma::col_major> b;
        wmma::load_matrix_sync(b, x_ + j * kWmma * kWmmaStride + k, kWmmaStride);
        wmma::mma_sync(sums[j], a, b, sums[j]);
      }
    }
  }

  // silu(gate) * up of output `column` (0 to 7) of a row block whose sums of `row` lie at `sums`.
  __device__ __forceinline__ float Gated(const float* sums, int column, int row) const {
    const float scale = SumScale(args_, row);
    return GatedOutput(args_, sums[column] * scale, sums[column + 8] * scale, row);
  }

  // All warps' outputs, [row][64]: 64 columns of y, or 32 of h, which are half a tile.
  __device__ __forceinline__ void StoreTile(const TileItem& item, Sums (&sums)[kN / kWmma]) {
    float* const out = reinterpret_cast<float*>(x_);
#pragma unroll
    for (int j = 0; j < kN / kWmma; ++j) {
      nvcuda::wmma::store_matrix_sync(out + j * kWmma * kWmmaOutStride + warp_ * kRowBlock, sums[j],
                                      kWmmaOutStride, nvcuda::wmma::mem_col_major);
    }
    __syncthreads();
    constexpr int kPieces = kFused ? 4 : 8;  // of 16 bytes of h, or of 8 columns of y
    for (int i = thread_; i < item.rows * kPieces; i += static_cast<int>(blockDim.x)) {
      const int row = item.first_row + i / kPieces;
      const float* const from = out + i / kPieces * kWmmaOutStride;
      const int piece = i % kPieces;
      if constexpr (kFused) {
        uint32_t pairs[4];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const float* const row_block = from + t * kRowBlock;
          pairs[t] =
              PackFloats(Gated(row_block, 2 * piece, row), Gated(row_block, 2 * piece + 1, row));
        }
        *reinterpret_cast<uint4*>(args_.h_tiles + TileOffset(row,
                                                             item.row_tile * kGroupK + 2 * piece,
                                                             args_.h_row_groups)) =
            make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      } else {
        StoreOutputs(args_, row, item.row_tile * kWmmaPromptM + piece * 8, from + piece * 8);
      }
    }
  }

  // This warp's outputs of up to eight rows, in natural order.
  __device__ __forceinline__ void StoreRows(const TileItem& item, int row_block,
                                            Sums (&sums)[kN / kWmma]) {
    constexpr int kStride = kRowBlock + 4;
    float* const out = reinterpret_cast<float*>(w_);
    nvcuda::wmma::store_matrix_sync(out, sums[0], kStride, nvcuda::wmma::mem_col_major);
    __syncwarp();
    if (row_block >= args_.row_blocks) return;
    const int row = item.first_row + lane_ / 2;
    if (lane_ / 2 >= item.rows) return;
    const float* const from = out + lane_ / 2 * kStride;
    if constexpr (kFused) {
      const int column = lane_ % 2 * 4;
      const uint2 values =
          make_uint2(PackFloats(Gated(from, column, row), Gated(from, column + 1, row)),
                     PackFloats(Gated(from, column + 2, row), Gated(from, column + 3, row)));
      const int64_t columns = args_.row_blocks * (kRowBlock / 2);
      *reinterpret_cast<uint2*>(args_.h_rows + row * columns + row_block * (kRowBlock / 2) +
                                column) = values;
    } else {
      const int column = lane_ % 2 * 8;
      StoreOutputs(args_, row, row_block * kRowBlock + column, from + column);
    }
  }

  const GroupedArgs& args_;
  uint8_t* const table_;
  __half* const x_;  // [kN][64], padded
  const int thread_;
  const int lane_;
  const int warp_;
  const int warps_;
  __half* const w_;  // [16][64] of this warp, padded
};

#endif  // __CUDA_ARCH__ >= 700

// The grid is any number of blocks.
template <QuantType kType, bool kFused, bool kFew>
__global__ void __launch_bounds__(kFew ? kFewRowsMaxWarps* kWarpLanes
                                       : kWmmaPromptWarps* kWarpLanes,
                                  1) WmmaTileKernel(const __grid_constant__ GroupedArgs args) {
#if __CUDA_ARCH__ >= 700
  extern __shared__ __align__(1024) uint8_t shared[];
  WmmaTile<kType, kFused, kFew>(args, shared).Run();
#endif
}

template <QuantType kType, bool kFused>
KernelRow WmmaPromptRow(const char* name) {
  return {.name = name,
          .policy = Policy::kWmma,
          .op = kFused ? Op::kGateUp : Op::kPlain,
          .type = kType,
          .n = kWmmaPromptN,
          .m = kWmmaPromptM,
          .shared_bytes = WeightFormat<kType>::kTableBytes + kWmmaPromptBytes,
          .threads = kWmmaPromptWarps * kWarpLanes,
          .min_capability = 70,
          .function = reinterpret_cast<const void*>(&WmmaTileKernel<kType, kFused, false>)};
}

template <QuantType kType, bool kFused>
KernelRow WmmaFewRow(const char* name) {
  return {.name = name,
          .policy = Policy::kWmma,
          .op = kFused ? Op::kFewGateUp : Op::kFewPlain,
          .type = kType,
          .n = kFewRowsN,
          .m = kRowBlock,
          .shared_bytes = FewRowsSharedBytes(
              WeightFormat<kType>::kTableBytes + kWmma * kWmmaRowBytes, kFewRowsMaxWarps),
          .threads = kFewRowsMaxWarps * kWarpLanes,
          .min_capability = 70,
          .function = reinterpret_cast<const void*>(&WmmaTileKernel<kType, kFused, true>)};
}

// The WMMA kernels of one type.
template <QuantType kType>
void AppendWmmaRows(std::vector<KernelRow>& rows) {
  rows.push_back(WmmaPromptRow<kType, true>("wmma_gate_up"));
  rows.push_back(WmmaPromptRow<kType, false>("wmma_plain"));
  rows.push_back(WmmaFewRow<kType, true>("wmma_few_gate_up"));
  rows.push_back(WmmaFewRow<kType, false>("wmma_few_plain"));
}

}  // namespace warpline::cuda
