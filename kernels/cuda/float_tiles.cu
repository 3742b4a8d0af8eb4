#include "kernels/cuda/float_tiles.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/float_tile.h"
#include "kernels/cuda/mma_ops.cuh"

namespace warpline::cuda {
namespace {

constexpr int kStages = 3;  // 48 KiB of shared memory, as much as needs no permission
constexpr int kStagePieces = kFloatStageValues / kFloatPieceK;

// Like CopyAsync16, but zeros where there is nothing to copy, without a branch.
__device__ __forceinline__ void CopyAsync16OrZeros(float4* shared, const float* global,
                                                   bool is_there) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
               "l"(global), "r"(is_there ? 16 : 0)
               : "memory");
#else
  *shared = is_there ? *reinterpret_cast<const float4*>(global) : make_float4(0, 0, 0, 0);
#endif
}

// The numbers of a tile.
template <int kThreadRows, int kThreadColumns>
struct Numbers {
  static constexpr FloatTile kTile = {kThreadRows, kThreadColumns};
  static constexpr int kRows = kTile.rows();
  static constexpr int kColumns = kTile.columns();
  static constexpr int kStageK = kTile.stage_k();
  static constexpr int kRowPieces = kStageK / kFloatPieceK;
  static constexpr int kSteps = kRowPieces / kFloatGroups;
  // A block copies so many rows at once; a thread always the same piece of them.
  static constexpr int kRowsAtOnce = kFloatThreads / kRowPieces;
  static constexpr int kCopies = (kRows + kColumns) / kRowsAtOnce;
  static constexpr int kCopiesOfX = kRows / kRowsAtOnce;
  static constexpr int kSums = kThreadRows * kThreadColumns;
  static_assert(kRowsAtOnce % 8 == 0, "the copies of a thread keep their place within eight rows");
  static_assert(kRows % kRowsAtOnce == 0 && kColumns % kRowsAtOnce == 0);
  static_assert(kSteps % 2 == 0, "operands alternate between two sets of registers");
};

// What one thread copies of each stage.
template <typename N, bool kAligned>
struct Copier {
  const float* from[N::kCopies];  // at this thread's piece of the first stage
  int piece_k;
  int place;

  __device__ __forceinline__ Copier(const FloatProductArgs& args, int first_row, int first_column) {
    const int row = static_cast<int>(threadIdx.x) / N::kRowPieces;
    const int piece = static_cast<int>(threadIdx.x) % N::kRowPieces;
    piece_k = piece * kFloatPieceK;
    place = FloatTilePlace(row, piece, N::kRowPieces);
    // Beyond the end the last row or column is computed again; it is not stored.
#pragma unroll
    for (int i = 0; i < N::kCopies; ++i) {
      if (i < N::kCopiesOfX) {
        const int x_row = min(first_row + row + i * N::kRowsAtOnce, args.rows - 1);
        from[i] = args.x + x_row * args.x_stride + piece_k;
      } else {
        const int column = first_column + row + (i - N::kCopiesOfX) * N::kRowsAtOnce;
        from[i] =
            args.weights + static_cast<int64_t>(min(column, args.columns - 1)) * args.k + piece_k;
      }
    }
  }

  // The stage that begins with `k` of `end` values; behind them come zeros.
  __device__ __forceinline__ void Copy(int k, int end, float4* stage) const {
    const int left = end - k - piece_k;
#pragma unroll
    for (int i = 0; i < N::kCopies; ++i) {
      float4* const to = stage + place + i * kFloatThreads;
      const float* const values = from[i] + k;
      if constexpr (kAligned) {
        CopyAsync16OrZeros(to, values, left > 0);
      } else {
        *to = make_float4(left > 0 ? values[0] : 0, left > 1 ? values[1] : 0,
                          left > 2 ? values[2] : 0, left > 3 ? values[3] : 0);
      }
    }
  }
};

// What a thread multiplies in a step: a piece of each of its rows and columns.
template <int kThreadRows, int kThreadColumns>
struct Operands {
  using N = Numbers<kThreadRows, kThreadColumns>;
  float4 x[kThreadRows];
  float4 w[kThreadColumns];

  __device__ __forceinline__ void Load(const float4* stage, int step) {
    const int thread = static_cast<int>(threadIdx.x) % kFloatGroupThreads;
    const int piece = FloatTilePiece(static_cast<int>(threadIdx.x) / kFloatGroupThreads, step);
    const float4* const rows = stage + FloatTilePlace(FloatTileRow(thread), piece, N::kRowPieces);
    const float4* const columns =
        stage + FloatTilePlace(N::kRows + FloatTileColumn(thread), piece, N::kRowPieces);
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) x[r] = rows[r * 8 * N::kRowPieces];
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) w[c] = columns[c * 8 * N::kRowPieces];
  }

  // Neighbouring additions go to different sums, so that none waits for the one before.
  __device__ __forceinline__ void MultiplyAdd(float (&sums)[N::kSums]) const {
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) Add(w[c].x, x[r].x, sums[r * kThreadColumns + c]);
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) Add(w[c].y, x[r].y, sums[r * kThreadColumns + c]);
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) Add(w[c].z, x[r].z, sums[r * kThreadColumns + c]);
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) Add(w[c].w, x[r].w, sums[r * kThreadColumns + c]);
    }
  }

 private:
  static __device__ __forceinline__ void Add(float w, float x, float& sum) {
    sum = fmaf(w, x, sum);
  }
};

// All steps of a stage but the last, of which the operands are loaded only: the multiplications
// have something to do while the operands of the next stage come.
template <int kThreadRows, int kThreadColumns>
__device__ __forceinline__ void TakeSteps(const float4* stage,
                                          Operands<kThreadRows, kThreadColumns> (&operands)[2],
                                          float (&sums)[kThreadRows * kThreadColumns]) {
  constexpr int kSteps = Numbers<kThreadRows, kThreadColumns>::kSteps;
#pragma unroll
  for (int step = 0; step + 1 < kSteps; ++step) {
    operands[(step + 1) % 2].Load(stage, step + 1);
    operands[step % 2].MultiplyAdd(sums);
  }
}

// Adds up the parts of the groups; group 0 has the sums then. `parts` holds 3 tiles.
template <int kSums>
__device__ __forceinline__ void AddGroups(float (&sums)[kSums], float* parts) {
  const int group = static_cast<int>(threadIdx.x) / kFloatGroupThreads;
  float* const own = parts + static_cast<int>(threadIdx.x) % kFloatGroupThreads;
  constexpr int kTilePart = kSums * kFloatGroupThreads;
  __syncthreads();  // The last stages have been read.
  if (group >= 2) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      own[(group - 2) * kTilePart + i * kFloatGroupThreads] = sums[i];
    }
  }
  __syncthreads();
  if (group < 2) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] += own[group * kTilePart + i * kFloatGroupThreads];
  }
  if (group == 1) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) own[2 * kTilePart + i * kFloatGroupThreads] = sums[i];
  }
  __syncthreads();
  if (group == 0) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] += own[2 * kTilePart + i * kFloatGroupThreads];
  }
}

// A block for a tile; neighbouring blocks share rows of x.
template <int kThreadRows, int kThreadColumns, bool kAligned>
__global__ void __launch_bounds__(kFloatThreads)
    MultiplyFloats(const __grid_constant__ FloatProductArgs args) {
  using N = Numbers<kThreadRows, kThreadColumns>;
  static_assert(3 * N::kSums * kFloatGroupThreads <= kStages * kFloatStageValues);
  __shared__ float4 shared[kStages * kStagePieces];  // stages: [rows, then columns][pieces]
  const int column_tiles = (args.columns + N::kColumns - 1) / N::kColumns;
  const int first_row = static_cast<int>(blockIdx.x) / column_tiles * N::kRows;
  const int first_column = static_cast<int>(blockIdx.x) % column_tiles * N::kColumns;
  const int padded_k = (args.k + kFloatPadK - 1) / kFloatPadK * kFloatPadK;

  const Copier<N, kAligned> copier(args, first_row, first_column);
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    copier.Copy(i * N::kStageK, args.k, shared + i * kStagePieces);
    CommitCopies();
  }
  WaitForCopies<kStages - 1>();
  __syncthreads();
  Operands<kThreadRows, kThreadColumns> operands[2];
  float sums[N::kSums] = {};
  operands[0].Load(shared, 0);
  TakeSteps(shared, operands, sums);
  float4* stage = shared;
  for (int k = N::kStageK; k < padded_k; k += N::kStageK) {
    float4* const before = stage;
    stage = stage == shared + (kStages - 1) * kStagePieces ? shared : stage + kStagePieces;
    // All threads have taken what they need of the stage before, and this one is there.
    WaitForCopies<kStages - 2>();
    __syncthreads();
    copier.Copy(k + (kStages - 1) * N::kStageK, args.k, before);
    CommitCopies();
    operands[0].Load(stage, 0);
    operands[1].MultiplyAdd(sums);
    TakeSteps(stage, operands, sums);
  }
  operands[1].MultiplyAdd(sums);
  WaitForCopies<0>();  // Zeros behind the end are on their way still.
  AddGroups(sums, reinterpret_cast<float*>(shared));
  if (threadIdx.x >= kFloatGroupThreads) return;
  const int row = first_row + FloatTileRow(static_cast<int>(threadIdx.x));
  const int column = first_column + FloatTileColumn(static_cast<int>(threadIdx.x));
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      if (row + 8 * r < args.rows && column + 8 * c < args.columns) {
        args.y[(row + 8 * r) * args.y_stride + column + 8 * c] = sums[r * kThreadColumns + c];
      }
    }
  }
}

template <int kIndex>
void Launch(const FloatProductArgs& args, cudaStream_t stream) {
  constexpr FloatTile kTile = kFloatTiles[kIndex];
  const auto blocks = static_cast<unsigned>(FloatTileBlocks(kTile, args.rows, args.columns));
  const bool is_aligned = args.k % kFloatPieceK == 0 && args.x_stride % kFloatPieceK == 0 &&
                          reinterpret_cast<uintptr_t>(args.x) % 16 == 0 &&
                          reinterpret_cast<uintptr_t>(args.weights) % 16 == 0;
  const auto kernel = is_aligned ? &MultiplyFloats<kTile.thread_rows, kTile.thread_columns, true>
                                 : &MultiplyFloats<kTile.thread_rows, kTile.thread_columns, false>;
  kernel<<<blocks, kFloatThreads, 0, stream>>>(args);
}

using Launcher = void (*)(const FloatProductArgs&, cudaStream_t);
constexpr Launcher kLaunchers[] = {&Launch<0>, &Launch<1>, &Launch<2>, &Launch<3>};
static_assert(sizeof(kLaunchers) / sizeof(kLaunchers[0]) == kFloatTileCount);

}  // namespace

bool TakesFloatTiles(const FloatProductArgs& args) {
  constexpr int kFewColumns = 16;  // A router has more; most of a tile would be idle.
  return args.is_prompt && args.experts == nullptr && args.expert_scales == nullptr &&
         args.rows_per_source == 1 && args.columns >= kFewColumns;
}

absl::Status FloatTiles(const FloatProductArgs& args, cudaStream_t stream) {
  kLaunchers[ChooseFloatTile(args.rows, args.columns)](args, stream);
  return LaunchStatus("tiles of a product of floats");
}

}  // namespace warpline::cuda
