#include "kernels/cuda/gather_tiles.h"

#include <algorithm>

#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/half_math.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/swiglu.cuh"

namespace warpline::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 8;  // consecutive values of a thread; four threads make a group of 32

// Eight values of a row from `k`, zeros beyond its end. Rows that are aligned are read 16 bytes at
// a time.
struct Values {
  float v[kChunk];
};
__device__ __forceinline__ Values LoadFloats(const float* row, int k, int end) {
  Values values = {};
  if (end % 4 == 0) {
    if (k < end) {
      const float4 low = *reinterpret_cast<const float4*>(row + k);
      values = {low.x, low.y, low.z, low.w};
    }
    if (k + 4 < end) {
      const float4 high = *reinterpret_cast<const float4*>(row + k + 4);
      values.v[4] = high.x;
      values.v[5] = high.y;
      values.v[6] = high.z;
      values.v[7] = high.w;
    }
    return values;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (k + i < end) values.v[i] = row[k + i];
  }
  return values;
}
__device__ __forceinline__ uint4 LoadHalfWords(const uint16_t* row, int k, int end) {
  if (end % 8 == 0) {
    return k < end ? *reinterpret_cast<const uint4*>(row + k) : uint4{0, 0, 0, 0};
  }
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (k + i < end) words[i / 2] |= static_cast<uint32_t>(row[k + i]) << (16 * (i % 2));
  }
  return {words[0], words[1], words[2], words[3]};
}
__device__ __forceinline__ Values LoadHalves(const uint16_t* row, int k, int end) {
  const uint4 raw = LoadHalfWords(row, k, end);
  return {LowFloat(raw.x), HighFloat(raw.x), LowFloat(raw.y), HighFloat(raw.y),
          LowFloat(raw.z), HighFloat(raw.z), LowFloat(raw.w), HighFloat(raw.w)};
}

// Lane t of four holds the halves of k = 8 * t + 2 * p and the next in pairs[p]; it gets piece t of
// their group: pair t of each lane. All lanes of the warp take part.
__device__ __forceinline__ uint4 TransposeQuad(uint4 pairs) {
  const bool is_odd = (threadIdx.x & 1) != 0;
  const uint32_t a = __shfl_xor_sync(~0u, is_odd ? pairs.x : pairs.y, 1);
  const uint32_t b = __shfl_xor_sync(~0u, is_odd ? pairs.z : pairs.w, 1);
  (is_odd ? pairs.x : pairs.y) = a;
  (is_odd ? pairs.z : pairs.w) = b;
  const bool is_upper = (threadIdx.x & 2) != 0;
  const uint32_t c = __shfl_xor_sync(~0u, is_upper ? pairs.x : pairs.z, 2);
  const uint32_t d = __shfl_xor_sync(~0u, is_upper ? pairs.y : pairs.w, 2);
  (is_upper ? pairs.x : pairs.z) = c;
  (is_upper ? pairs.y : pairs.w) = d;
  return pairs;
}

// Where piece `chunk` % 4 of group `chunk` / 4 lies in a tensor of tiles; see TileOffset.
__device__ __forceinline__ uint8_t* PieceOf(uint8_t* tiles, int row_groups, int row, int chunk) {
  const int64_t tile = static_cast<int64_t>(chunk / 8) * row_groups + row / kTileRows;
  const int in_row = row % kTileRows;
  return tiles + tile * kTileBytes + in_row * 128 + ((chunk % 8) ^ in_row) * 16;
}

// 2^(14 - exponent of `peak`), so that peak times it lies in [2^14, 2^15); within 2^-100 and 2^100.
__device__ __forceinline__ int ScaleExponent(float peak) {
  if (peak == 0) return 0;
  const int exponent = static_cast<int>(__float_as_uint(peak) >> 23) - 127;
  return max(-100, min(100, 14 - exponent));
}
__device__ __forceinline__ float PowerOfTwo(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23);
}

template <bool kFloat>
__device__ __forceinline__ Values LoadChunk(const GatherArgs& args, int token, int chunk) {
  const int64_t at = static_cast<int64_t>(token) * args.k;
  if constexpr (kFloat) {
    return LoadFloats(static_cast<const float*>(args.x) + at, chunk * kChunk, args.k);
  } else {
    return LoadHalves(static_cast<const uint16_t*>(args.x) + at, chunk * kChunk, args.k);
  }
}

__device__ __forceinline__ float PeakOf(const Values& values) {
  float peak = 0;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) peak = fmaxf(peak, fabsf(values.v[i]));
  return peak;
}

// The largest of all threads' values.
__device__ __forceinline__ float BlockMax(float value) {
  __shared__ float warp_max[kThreads / 32];
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
  }
  if (threadIdx.x % 32 == 0) warp_max[threadIdx.x / 32] = value;
  __syncthreads();
  float result = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) result = fmaxf(result, warp_max[warp]);
  return result;
}

// One block a token.
template <bool kFloat>
__global__ void __launch_bounds__(kThreads) GatherToken(const __grid_constant__ GatherArgs args) {
  const int token = blockIdx.x;
  const int chunks = static_cast<int>(RoundUp(args.k, kPadK)) / kChunk;
  const int32_t* const rows = args.slot_row + static_cast<int64_t>(token) * args.slots;
  const Values first = LoadChunk<kFloat>(args, token, threadIdx.x);
  float scale = 1;
  if (args.row_scale != nullptr) {
    float peak = PeakOf(first);
    for (int chunk = threadIdx.x + kThreads; chunk < chunks; chunk += kThreads) {
      peak = fmaxf(peak, PeakOf(LoadChunk<kFloat>(args, token, chunk)));
    }
    const int exponent = ScaleExponent(BlockMax(peak));
    scale = PowerOfTwo(exponent);
    for (int slot = threadIdx.x; slot < args.slots; slot += kThreads) {
      if (rows[slot] >= 0) args.row_scale[rows[slot]] = PowerOfTwo(-exponent);
    }
  }
  // Whole warps go round together, for the exchange between lanes.
  for (int base = threadIdx.x & ~31; base < chunks; base += kThreads) {
    const int chunk = base + threadIdx.x % 32;
    const Values values = chunk < kThreads ? first : LoadChunk<kFloat>(args, token, chunk);
    const float* v = values.v;
    const uint4 piece = TransposeQuad(
        {PackFloats(v[0] * scale, v[1] * scale), PackFloats(v[2] * scale, v[3] * scale),
         PackFloats(v[4] * scale, v[5] * scale), PackFloats(v[6] * scale, v[7] * scale)});
    if (chunk >= chunks) continue;
#pragma unroll 4
    for (int slot = 0; slot < args.slots; ++slot) {
      const int row = rows[slot];
      if (row < 0) continue;
      *reinterpret_cast<uint4*>(PieceOf(args.tiles, args.row_groups, row, chunk)) = piece;
    }
  }
}

// One block for eight rows: each warp takes every eighth tile, 16 bytes a lane and 4 rows a turn.
__global__ void __launch_bounds__(kThreads) GatherRows(const __grid_constant__ GatherArgs args) {
  const int first_row = blockIdx.x * kTileRows;
  if (first_row >= *args.row_end) return;
  const int lane = threadIdx.x % 32;
  const int chunks = static_cast<int>(RoundUp(args.k, kPadK)) / kChunk;
  int tokens[2];  // of rows lane / 8 and lane / 8 + 4
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + half * 4 + lane / 8;
    tokens[half] = args.row_token[row];
    if (args.row_scale != nullptr && threadIdx.x < 32 && lane % 8 == 0 && tokens[half] >= 0) {
      args.row_scale[row] = args.token_scale != nullptr ? args.token_scale[tokens[half]] : 1.0f;
    }
  }
#pragma unroll 2
  for (int base = threadIdx.x / 32 * 8; base < chunks; base += kThreads / 32 * 8) {
    const int chunk = base + lane % 8;
    uint4 pieces[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = static_cast<int64_t>(max(tokens[half], 0)) * args.k;
      pieces[half] =
          LoadHalfWords(static_cast<const uint16_t*>(args.x) + at, chunk * kChunk, args.k);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 piece = TransposeQuad(pieces[half]);
      if (tokens[half] < 0) continue;
      // Evicted first, so that x stays in the cache.
      __stcs(reinterpret_cast<uint4*>(
                 PieceOf(args.tiles, args.row_groups, first_row + half * 4 + lane / 8, chunk)),
             piece);
    }
  }
}

// One warp a pair.
__global__ void __launch_bounds__(kThreads) SwiGluRow(const __grid_constant__ SwiGluArgs args) {
  const int pair = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  const int row = pair < args.pairs ? args.slot_row[pair] : -1;
  if (row < 0) return;
  const int chunks = static_cast<int>(RoundUp(args.columns, kPadK)) / kChunk;
  const float* const gate = args.gate + static_cast<int64_t>(row) * args.columns;
  const float* const up = args.up + static_cast<int64_t>(row) * args.columns;
  float peak = 0;
  for (int base = 0; base < chunks; base += 32) {
    const int chunk = base + threadIdx.x % 32;
    Values h = LoadFloats(gate, chunk * kChunk, args.columns);
    const Values u = LoadFloats(up, chunk * kChunk, args.columns);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) h.v[i] = SwiGlu(h.v[i], u.v[i] * args.output_scale);
    peak = fmaxf(peak, PeakOf(h));
    const uint4 piece =
        TransposeQuad({PackSaturated(h.v[0], h.v[1]), PackSaturated(h.v[2], h.v[3]),
                       PackSaturated(h.v[4], h.v[5]), PackSaturated(h.v[6], h.v[7])});
    if (chunk < chunks) {
      *reinterpret_cast<uint4*>(PieceOf(args.tiles, args.row_groups, row, chunk)) = piece;
    }
  }
  if (peak > kLargestHalf && args.overflow != nullptr) args.overflow[row] = 1;
}

}  // namespace

absl::Status GatherTiles(const GatherArgs& args, cudaStream_t stream) {
  if (args.tokens == 0) return absl::OkStatus();
  if (args.row_token != nullptr) {
    if (args.x_is_float || args.row_end == nullptr) {
      return absl::InvalidArgumentError("gathering by rows takes halves and the end of the rows");
    }
    GatherRows<<<args.row_groups, kThreads, 0, stream>>>(args);
    return LaunchStatus("gathering activation tiles by rows");
  }
  if (args.x_is_float) {
    GatherToken<true><<<args.tokens, kThreads, 0, stream>>>(args);
  } else {
    GatherToken<false><<<args.tokens, kThreads, 0, stream>>>(args);
  }
  return LaunchStatus("gathering activation tiles");
}

absl::Status SwiGluTiles(const SwiGluArgs& args, cudaStream_t stream) {
  if (args.pairs == 0) return absl::OkStatus();
  constexpr int kPairs = kThreads / 32;  // of a block
  SwiGluRow<<<(args.pairs + kPairs - 1) / kPairs, kThreads, 0, stream>>>(args);
  return LaunchStatus("SwiGLU of two products");
}

}  // namespace warpline::cuda
