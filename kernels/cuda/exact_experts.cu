#include "kernels/cuda/exact_experts.h"

#include "base/status.h"
#include "kernels/cuda/combine.cuh"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/early_launch.h"
#include "kernels/cuda/half_math.h"
#include "kernels/cuda/mma_ops.cuh"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/cuda/piece_dot.h"
#include "kernels/cuda/slot_sums.h"

namespace warpline::cuda {
namespace {

constexpr int kThreads = kNormThreads;
constexpr int kWarps = kThreads / kWarpLanes;
constexpr int kMaxTableBytes = 16384;

// sums[row] of one expert's matrix and x, in the order of the packed rows: a warp a row block.
// Out of line, so that the kernel is no larger than its types.
template <QuantType kType>
__device__ __noinline__ void MultiplyRows(const ExactMatrix& matrix, const uint8_t* packed,
                                          const float* x, int live, const uint8_t* table,
                                          float* sums) {
  static_assert(WeightFormat<kType>::kTableBytes <= kMaxTableBytes);
  constexpr PackedShape kShape = WeightFormat<kType>::kShape;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  for (int row_block = static_cast<int>(threadIdx.x) / kWarpLanes; row_block < matrix.row_blocks;
       row_block += kWarps) {
    float parts[2] = {0, 0};
    AddRowBlock<kType>(packed + row_block * RowBlockBytes(kShape, matrix.k), matrix.k, x, live,
                       table, lane, parts);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      parts[h] += __shfl_xor_sync(~0u, parts[h], 1);
      parts[h] += __shfl_xor_sync(~0u, parts[h], 2);
      if (lane % 4 == 0) {
        sums[row_block * kRowBlock + 8 * h + lane / 4] = parts[h] * matrix.weight_scale;
      }
    }
  }
}

// All threads take part; afterwards all see `sums`. `table` is shared memory.
__device__ void Multiply(const ExactMatrix& matrix, int expert, const float* x, int live,
                         uint8_t* table, float* sums) {
  for (int i = static_cast<int>(threadIdx.x) * 16; i < matrix.table_bytes; i += kThreads * 16) {
    *reinterpret_cast<uint4*>(table + i) =
        *reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(matrix.table) + i);
  }
  __syncthreads();
  const uint8_t* const packed = matrix.packed + expert * matrix.expert_bytes;
  switch (matrix.type) {
#define WL_CASE(name)                                                       \
  case QuantType::k##name:                                                  \
    MultiplyRows<QuantType::k##name>(matrix, packed, x, live, table, sums); \
    break
    WL_CASE(F32);
    WL_CASE(F16);
    WL_CASE(BF16);
    WL_CASE(Q4_0);
    WL_CASE(Q4_1);
    WL_CASE(Q5_0);
    WL_CASE(Q5_1);
    WL_CASE(Q8_0);
    WL_CASE(Q1_0);
    WL_CASE(Q2_0);
    WL_CASE(MXFP4);
    WL_CASE(NVFP4);
    WL_CASE(TQ1_0);
    WL_CASE(TQ2_0);
    WL_CASE(Q2K);
    WL_CASE(Q3K);
    WL_CASE(Q4K);
    WL_CASE(Q5K);
    WL_CASE(Q6K);
    WL_CASE(IQ1S);
    WL_CASE(IQ1M);
    WL_CASE(IQ2XXS);
    WL_CASE(IQ2XS);
    WL_CASE(IQ2S);
    WL_CASE(IQ3XXS);
    WL_CASE(IQ3S);
    WL_CASE(IQ4NL);
    WL_CASE(IQ4XS);
#undef WL_CASE
    default:
      break;  // No weight; the host has refused it.
  }
  __syncthreads();
}

__device__ __forceinline__ bool IsInfinite(uint16_t half) { return (half & 0x7FFF) == 0x7C00; }

// Where a block works; see ExactScratchFloats.
struct Places {
  float* sums;
  float* hidden;
  float* x;
  float* out;
};

__device__ __forceinline__ Places PlacesOf(const ExactExpertsArgs& args) {
  float* const x = args.scratch + blockIdx.x * ExactScratchFloats(args.n_embd, args.n_ff);
  float* const out = x + args.n_embd;
  float* const hidden = out + args.n_embd;
  return {hidden + args.n_ff, hidden, x, out};
}

__device__ void LoadToken(const ExactExpertsArgs& args, int token, const Places& places) {
  const float scale = args.token_scale != nullptr ? args.token_scale[token] : 1;
  for (int c = static_cast<int>(threadIdx.x); c < args.n_embd; c += kThreads) {
    places.x[c] =
        args.x != nullptr
            ? args.x[token * args.x_stride + c]
            : LowFloat(args.x_halves[static_cast<int64_t>(token) * args.n_embd + c]) * scale;
    places.out[c] = 0;
  }
  __syncthreads();
}

// hidden = silu(gate) * up of one expert.
__device__ void MakeHidden(const ExactExpertsArgs& args, int expert, uint8_t* table,
                           const Places& places) {
  const bool is_mixed = args.up.packed != nullptr;
  Multiply(args.gate, expert, places.x, args.n_embd, table, places.sums);
  float* const ups = places.sums + args.gate.row_blocks * kRowBlock;
  if (is_mixed) Multiply(args.up, expert, places.x, args.n_embd, table, ups);
  for (int i = static_cast<int>(threadIdx.x); i < args.n_ff; i += kThreads) {
    // Of one matrix eight rows of gate stand above the same eight of up.
    const float* const both = places.sums + i / 8 * kRowBlock + i % 8;
    const float gate = is_mixed ? places.sums[i] : both[0];
    const float up = is_mixed ? ups[i] : both[8];
    places.hidden[i] = gate / (1.0f + expf(-gate)) * up;
  }
  __syncthreads();
}

// Adds one slot's output to the token's.
__device__ void AddSlot(const ExactExpertsArgs& args, int64_t pair, uint8_t* table,
                        const Places& places) {
  const int row = args.slot_row[pair];
  const int expert = args.expert_ids[pair];
  if (row < 0 || expert < 0 || expert >= args.experts) return;  // The same for all threads.
  const uint16_t* const y = args.y + static_cast<int64_t>(row) * args.n_embd;
  bool is_beyond = args.overflow[row] != 0;
  for (int c = static_cast<int>(threadIdx.x); c < args.n_embd; c += kThreads) {
    is_beyond = is_beyond || IsInfinite(y[c]);
  }
  if (__syncthreads_or(is_beyond) == 0) {
    for (int c = static_cast<int>(threadIdx.x); c < args.n_embd; c += kThreads) {
      places.out[c] += LowFloat(y[c]);
    }
    return;
  }
  MakeHidden(args, expert, table, places);
  Multiply(args.down, expert, places.hidden, args.n_ff, table, places.sums);
  const float weight = args.weights[pair];
  for (int c = static_cast<int>(threadIdx.x); c < args.n_embd; c += kThreads) {
    places.out[c] += places.sums[c] * weight;
  }
  __syncthreads();  // The sums are free again.
}

// Each thread has added up the columns that it stores: c and c + kThreads.
__device__ void StorePending(const ExactExpertsArgs& args, int token, const Places& places) {
  const int64_t at = static_cast<int64_t>(token) * args.n_embd;
  uint8_t* const runs = args.pending.runs + static_cast<int64_t>(token) * args.pending.run_count;
  for (int c = static_cast<int>(threadIdx.x); c < args.n_embd; c += kThreads) {
    if (runs[c / args.pending.run_columns] == 0) continue;
    float value = places.out[c];
    if (args.shared != nullptr) value += args.shared[at + c];
    if (args.residual != nullptr) value += args.residual[at + c];
    args.out[at + c] = value;
  }
  __syncthreads();
  for (int run = static_cast<int>(threadIdx.x); run < args.pending.run_count; run += kThreads) {
    runs[run] = 0;
  }
}

__device__ void RedoToken(const ExactExpertsArgs& args, int token, uint8_t* table,
                          const Places& places) {
  const uint8_t* const runs =
      args.pending.runs + static_cast<int64_t>(token) * args.pending.run_count;
  bool is_pending = false;
  for (int run = static_cast<int>(threadIdx.x); run < args.pending.run_count; run += kThreads) {
    is_pending = is_pending || runs[run] != 0;
  }
  if (__syncthreads_or(is_pending) == 0) return;
  LoadToken(args, token, places);
  for (int slot = 0; slot < args.slots; ++slot) {
    AddSlot(args, static_cast<int64_t>(token) * args.slots + slot, table, places);
  }
  StorePending(args, token, places);
}

// One block a token at a time.
__global__ void __launch_bounds__(kThreads)
    ExactExperts(const __grid_constant__ ExactExpertsArgs args) {
  __shared__ __align__(16) uint8_t table[kMaxTableBytes];
  WaitForPreviousGrid();
  // Nobody changes it before all blocks have read it.
  if (*static_cast<volatile const int32_t*>(args.pending.any) == 0) return;
  const Places places = PlacesOf(args);
  for (int token = static_cast<int>(blockIdx.x); token < args.tokens;
       token += static_cast<int>(gridDim.x)) {
    RedoToken(args, token, table, places);
  }
  if (threadIdx.x != 0) return;
  // The count begins again at 0 when the last block is done.
  if (atomicInc(reinterpret_cast<unsigned*>(args.pending.any + 1), gridDim.x - 1) ==
      gridDim.x - 1) {
    *args.pending.any = 0;
  }
}

struct NormSumsArgs {
  SlotSums sums;
  NormArgs norm;
};

// One block a token. What Combine leaves out is made here at once.
template <int kRuns>
__global__ void __launch_bounds__(kThreads) SumAndNorm(const __grid_constant__ NormSumsArgs args) {
  __shared__ __align__(16) uint8_t table[kMaxTableBytes];
  const CombineArgs& combine = args.sums.combine;
  const int64_t token = blockIdx.x;
  const int64_t width = combine.columns;
  HeldRow<kRuns> gamma;
  if (args.norm.gamma != nullptr) gamma = LoadHeld<kRuns>(args.norm.gamma, width);
  // Where the rows lie was known before the kernel before this one let it start.
  if (threadIdx.x < combine.slots) {
    const int row = combine.slot_row[token * combine.slots + threadIdx.x];
    if (row >= 0) asm volatile("prefetch.global.L1 [%0];" ::"l"(combine.overflow + row));
  }
  WaitForPreviousGrid();
  LetNextGridStart();
  HeldRow<kRuns> x;
  float* const out = combine.out + token * width;
  bool is_pending = false;
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    const int column = 4 * HeldRun(i);
    SlotSum<4> sum = {};
    if (column < width) sum = SumSlots<4, false>(combine, token, column);
    // Two threads share the columns of a run; all take part in the exchange.
    const bool other_is_beyond = __shfl_xor_sync(~0u, sum.is_beyond, 1);
    const bool is_beyond = sum.is_beyond || other_is_beyond;
    if (column < width && !is_beyond) {
      AddRest(combine, token, column, sum.run);
      StoreFloats(sum.run, out + column);
    }
    if (is_beyond) combine.pending.runs[token * combine.pending.run_count + column / 8] = 1;
    is_pending = is_pending || is_beyond;
    x.v[i] = make_float4(sum.run.v[0], sum.run.v[1], sum.run.v[2], sum.run.v[3]);
  }
  if (__syncthreads_or(is_pending) != 0) {
    RedoToken(args.sums.exact, static_cast<int>(token), table, PlacesOf(args.sums.exact));
    __syncthreads();
    x = LoadHeld<kRuns>(out, width);
  }
  NormHeldRow(args.norm, token, gamma, x);
}

}  // namespace

absl::Status MakeSums(const SlotSums& sums, cudaStream_t stream) {
  WL_RETURN_IF_ERROR(Combine(sums.combine, stream));
  return RunExactExperts(sums.exact, stream);
}

bool CanNormSums(const SlotSums& sums, const NormArgs& norm) {
  const CombineArgs& combine = sums.combine;
  return combine.tokens <= kExactBlocks && RunColumns(combine.columns) == 8 &&
         !combine.y_is_float && combine.overflow != nullptr && !norm.accumulate &&
         norm.in.data == combine.out && norm.in.stride == combine.columns &&
         norm.in.width == combine.columns && norm.in.row_count == combine.tokens &&
         HeldRuns(norm) > 0;
}

absl::Status NormSums(const SlotSums& sums, const NormArgs& norm, cudaStream_t stream) {
  const int runs = HeldRuns(norm);
  const void* const kernel = runs == 1   ? reinterpret_cast<const void*>(&SumAndNorm<1>)
                             : runs == 2 ? reinterpret_cast<const void*>(&SumAndNorm<2>)
                                         : reinterpret_cast<const void*>(&SumAndNorm<4>);
  return LaunchEarly(kernel, dim3(static_cast<unsigned>(sums.combine.tokens)), kThreads, 0,
                     NormSumsArgs{sums, norm}, norm.is_early, stream, "sums and their norm");
}

absl::Status RunExactExperts(const ExactExpertsArgs& args, cudaStream_t stream) {
  if (args.tokens == 0) return absl::OkStatus();
  const unsigned blocks =
      static_cast<unsigned>(args.tokens < kExactBlocks ? args.tokens : kExactBlocks);
  return LaunchEarly(reinterpret_cast<const void*>(&ExactExperts), dim3(blocks), kThreads, 0, args,
                     args.starts_early, stream, "computing tokens again");
}

}  // namespace warpline::cuda
