#include "kernels/cuda/combine.h"

#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/half_math.h"

namespace warpline::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBatch = 4;  // slots whose rows are loaded at once

// kCount consecutive values; aligned where kCount is more than one.
template <int kCount>
struct Run {
  float v[kCount];
};

__device__ __forceinline__ void LoadFloats(const float* from, Run<1>& run) { run.v[0] = *from; }
__device__ __forceinline__ void LoadFloats(const float* from, Run<8>& run) {
  const float4 low = reinterpret_cast<const float4*>(from)[0];
  const float4 high = reinterpret_cast<const float4*>(from)[1];
  run = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}
__device__ __forceinline__ void LoadHalves(const uint16_t* from, Run<1>& run) {
  run.v[0] = LowFloat(*from);
}
__device__ __forceinline__ void LoadHalves(const uint16_t* from, Run<8>& run) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  run = {LowFloat(raw.x), HighFloat(raw.x), LowFloat(raw.y), HighFloat(raw.y),
         LowFloat(raw.z), HighFloat(raw.z), LowFloat(raw.w), HighFloat(raw.w)};
}
__device__ __forceinline__ void StoreFloats(const Run<1>& run, float* to) { *to = run.v[0]; }
__device__ __forceinline__ void StoreFloats(const Run<8>& run, float* to) {
  reinterpret_cast<float4*>(to)[0] = {run.v[0], run.v[1], run.v[2], run.v[3]};
  reinterpret_cast<float4*>(to)[1] = {run.v[4], run.v[5], run.v[6], run.v[7]};
}

template <int kCount>
__device__ __forceinline__ void Add(const Run<kCount>& other, Run<kCount>& sum) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum.v[i] += other.v[i];
}

// Whether a half that is summed up for this thread's columns is infinite: beyond the largest one.
template <int kCount>
__device__ bool HasInfinite(const CombineArgs& args, const int32_t* rows, int column) {
  for (int slot = 0; slot < args.slots; ++slot) {
    if (rows[slot] < 0) continue;
    Run<kCount> y;
    LoadHalves(static_cast<const uint16_t*>(args.y) +
                   static_cast<int64_t>(rows[slot]) * args.columns + column,
               y);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (isinf(y.v[i])) return true;
    }
  }
  return false;
}

template <int kCount>
__device__ __forceinline__ bool IsFinite(const Run<kCount>& run) {
  bool is_finite = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) is_finite = is_finite && isfinite(run.v[i]);
  return is_finite;
}

// One thread: kCount columns of a token.
template <int kCount, bool kFloat>
__global__ void __launch_bounds__(kThreads) CombineRuns(const __grid_constant__ CombineArgs args) {
  const int token = blockIdx.x;
  const int32_t* const rows = args.slot_row + static_cast<int64_t>(token) * args.slots;
  const int64_t token_at = static_cast<int64_t>(token) * args.columns;
  for (int column = (blockIdx.y * kThreads + threadIdx.x) * kCount; column < args.columns;
       column += gridDim.y * kThreads * kCount) {
    Run<kCount> sum = {};
    bool is_pending = false;
    for (int first = 0; first < args.slots; first += kBatch) {
      Run<kCount> y[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        y[i] = {};
        const int row = first + i < args.slots ? rows[first + i] : -1;
        if (row < 0) continue;
        if (args.overflow != nullptr) is_pending = is_pending || __ldg(args.overflow + row) != 0;
        const int64_t at = static_cast<int64_t>(row) * args.columns + column;
        if constexpr (kFloat) {
          LoadFloats(static_cast<const float*>(args.y) + at, y[i]);
        } else {
          LoadHalves(static_cast<const uint16_t*>(args.y) + at, y[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) Add(y[i], sum);
    }
    if (!kFloat && args.overflow != nullptr) {
      is_pending = is_pending || (!IsFinite(sum) && HasInfinite<kCount>(args, rows, column));
      if (is_pending) {
        args.pending.runs[static_cast<int64_t>(token) * args.pending.run_count + column / kCount] =
            1;
        *args.pending.any = 1;
        continue;
      }
    }
    Run<kCount> addend;
    if (args.shared != nullptr) {
      LoadFloats(args.shared + token_at + column, addend);
      Add(addend, sum);
    }
    if (args.residual != nullptr) {
      LoadFloats(args.residual + token_at + column, addend);
      Add(addend, sum);
    }
    StoreFloats(sum, args.out + token_at + column);
  }
}

template <int kCount, bool kFloat>
void Launch(const CombineArgs& args, cudaStream_t stream) {
  const int runs = (args.columns + kCount - 1) / kCount;
  const dim3 grid(args.tokens, (runs + kThreads - 1) / kThreads);
  CombineRuns<kCount, kFloat><<<grid, kThreads, 0, stream>>>(args);
}

}  // namespace

absl::Status Combine(const CombineArgs& args, cudaStream_t stream) {
  if (args.tokens == 0 || args.columns == 0) return absl::OkStatus();
  if (RunColumns(args.columns) == 8) {
    args.y_is_float ? Launch<8, true>(args, stream) : Launch<8, false>(args, stream);
  } else {
    args.y_is_float ? Launch<1, true>(args, stream) : Launch<1, false>(args, stream);
  }
  return LaunchStatus("combining expert outputs");
}

}  // namespace warpline::cuda
