#include "kernels/cuda/early_launch.h"
#include "kernels/cuda/half_math.h"
#include "kernels/cuda/mma_ops.cuh"
#include "kernels/cuda/qkv_rope.h"

namespace warpline::cuda {
namespace {

constexpr int kWarps = 4;  // of a block; each takes one head of one row
constexpr int kLanes = kWarpLanes;
constexpr uint32_t kAllLanes = ~0u;

// The scale of a group of int8 values, as a half, and what it divides by. A group that is not
// finite gets a NaN scale, so that reading it is not finite either.
struct GroupScale {
  uint32_t bits;
  bool is_finite;
  float inverse;
};
__device__ __forceinline__ GroupScale ScaleOf(float largest, bool is_finite) {
  GroupScale result;
  result.bits = is_finite ? HalfFromFloat(largest / 127.0f) : 0x7E00;
  result.is_finite = is_finite;
  const float scale = LowFloat(result.bits);
  result.inverse = is_finite && scale > 0 ? 1.0f / scale : 0.0f;
  return result;
}
__device__ __forceinline__ int Quantized(const GroupScale& scale, float value) {
  const float scaled = scale.is_finite ? value * scale.inverse : 0.0f;
  return static_cast<int>(rintf(fminf(127.0f, fmaxf(-127.0f, scaled))));
}
constexpr float kLargestFloat = 3.402823466e38f;

// Which head of which tensor a warp takes: those of q, then of k, then of v.
struct WarpHead {
  bool is_q, is_v;
  int head;
};
__device__ __forceinline__ WarpHead HeadOf(const QkvRopeArgs& args, int index) {
  WarpHead warp = {};
  warp.is_q = index < args.n_head;
  if (!warp.is_q) index -= args.n_head;
  warp.is_v = !warp.is_q && index >= args.cache.n_head_kv;
  warp.head = warp.is_v ? index - args.cache.n_head_kv : index;
  return warp;
}

__device__ __forceinline__ float WarpSum(float value) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// values[dim] become gamma * values / rms; `values` is the warp's shared memory.
__device__ __forceinline__ void NormHead(const float* gamma, float eps, int dim, int lane,
                                         float* values) {
  float squares = 0;
  for (int d = lane; d < dim; d += kLanes) squares = fmaf(values[d], values[d], squares);
  const float factor = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(dim) + eps);
  for (int d = lane; d < dim; d += kLanes) values[d] = values[d] * factor * gamma[d];
  __syncwarp();
}

__device__ __forceinline__ void RotateHead(const QkvRopeArgs& args, int row, int lane,
                                           float* values) {
  const float2* const table = args.rotation + static_cast<int64_t>(row) * args.pairs;
  for (int pair = lane; pair < args.pairs; pair += kLanes) {
    const int first = args.interleaved ? 2 * pair : pair;
    const int second = first + (args.interleaved ? 1 : args.pairs);
    const float2 angle = table[pair];
    const float a = values[first];
    const float b = values[second];
    values[first] = fmaf(a, angle.x, b * -angle.y);
    values[second] = fmaf(b, angle.x, a * angle.y);
  }
  __syncwarp();
}

// One token of one block.
__device__ __forceinline__ void StoreHead(const KvLayout& layout, const float* values, int token,
                                          int lane, uint8_t* block) {
  for (int first = 0; first < layout.head_dim; first += kLanes) {
    const int d = first + lane;
    const bool is_live = d < layout.head_dim;
    const float value = is_live ? values[d] : 0;
    uint8_t* const at = block + ValueOffset(layout, token, is_live ? d : 0);
    if (layout.type == KvType::kF32) {
      if (is_live) *reinterpret_cast<float*>(at) = value;
      continue;
    }
    if (layout.type == KvType::kF16) {
      if (is_live) *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(HalfFromFloat(value));
      continue;
    }
    float largest = fabsf(value);
    bool is_finite = largest <= kLargestFloat;
    for (int distance = layout.group / 2; distance > 0; distance /= 2) {  // group: 8, 16 or 32
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
      is_finite = __shfl_xor_sync(kAllLanes, is_finite, distance) && is_finite;
    }
    const GroupScale scale = ScaleOf(largest, is_finite);
    if (!is_live) continue;
    *reinterpret_cast<int8_t*>(at) = static_cast<int8_t>(Quantized(scale, value));
    if (d % layout.group == 0) {
      *reinterpret_cast<uint16_t*>(block + ScaleOffset(layout, token, d / layout.group)) =
          static_cast<uint16_t>(scale.bits);
    }
  }
}

__device__ __forceinline__ void ClearBytes(uint8_t* memory, int bytes, int lane) {
  if ((reinterpret_cast<uintptr_t>(memory) | bytes) % 16 == 0) {
    for (int i = 16 * lane; i < bytes; i += 16 * kLanes) {
      *reinterpret_cast<uint4*>(memory + i) = make_uint4(0, 0, 0, 0);
    }
    return;
  }
  for (int i = lane; i < bytes; i += kLanes) memory[i] = 0;
}

// Clears the values of a page's tokens that no row of the step stores; `row` stores the first one.
__device__ __forceinline__ void ClearTail(const QkvRopeArgs& args, int row, int lane,
                                          uint8_t* block) {
  const KvLayout& layout = args.cache.layout;
  const int32_t sequence = args.step.sequence_of_row[row];
  int stored = 0;
  for (int token = lane; token < kPageTokens; token += kLanes) {
    const int other = row + token;
    const bool is_stored =
        other < args.step.row_count && args.step.sequence_of_row[other] == sequence;
    stored += __popc(__ballot_sync(kAllLanes, is_stored));
  }
  const int tiles = layout.head_dim * layout.value_bytes / layout.row_bytes;
  for (int tile = 0; tile < tiles; ++tile) {
    ClearBytes(block + (tile * kPageTokens + stored) * layout.row_bytes,
               (kPageTokens - stored) * layout.row_bytes, lane);
  }
  if (layout.type == KvType::kQ8_0) {
    const int first = ScaleOffset(layout, stored, 0);
    ClearBytes(block + first, ScaleOffset(layout, kPageTokens, 0) - first, lane);
  }
}

// Where the keys or values of a row's position lie.
__device__ __forceinline__ uint8_t* BlockOfRow(const QkvRopeArgs& args, int row,
                                               const WarpHead& warp) {
  const int position = args.step.positions[row];
  const int32_t page = PagesOfRow(args.step, row)[position / kPageTokens];
  return args.cache.data + BlockOffset(args.cache, page, warp.head, warp.is_v);
}

// Any head size. Grid: [heads / kWarps][rows], as for the kernel below.
__global__ void __launch_bounds__(kWarps* kLanes)
    QkvRopeHeads(const __grid_constant__ QkvRopeArgs args) {
  __shared__ float head_values[kWarps][kMaxHeadDim];
  const int lane = threadIdx.x % kLanes;
  const int row = blockIdx.y;
  const int index = blockIdx.x * kWarps + threadIdx.x / kLanes;
  LetNextGridStart();
  if (index >= args.n_head + 2 * args.cache.n_head_kv) return;
  const WarpHead warp = HeadOf(args, index);
  WaitForPreviousGrid();
  const int dim = args.cache.layout.head_dim;
  const float* const gamma = warp.is_q ? args.q_gamma : warp.is_v ? nullptr : args.k_gamma;
  const float* const in = warp.is_q   ? args.q + row * args.q_stride
                          : warp.is_v ? args.v + row * args.v_stride
                                      : args.k + row * args.k_stride;
  if (warp.is_q && gamma == nullptr && args.pairs == 0) return;
  float* const values = head_values[threadIdx.x / kLanes];
  for (int d = lane; d < dim; d += kLanes) values[d] = in[warp.head * dim + d];
  __syncwarp();
  if (gamma != nullptr) NormHead(gamma, args.eps, dim, lane, values);
  if (!warp.is_v && args.pairs > 0) RotateHead(args, row, lane, values);
  if (warp.is_q) {
    float* const out = args.q + row * args.q_stride + warp.head * dim;
    for (int d = lane; d < dim; d += kLanes) out[d] = values[d];
    return;
  }
  const int token = args.step.positions[row] % kPageTokens;
  uint8_t* const block = BlockOfRow(args, row, warp);
  StoreHead(args.cache.layout, values, token, lane, block);
  if (warp.is_v && token == 0) ClearTail(args, row, lane, block);
}

// Consecutive values of a lane.
template <int kCount>
struct alignas(kCount >= 4 ? 16 : 8) LaneValues {
  float v[kCount];
};

// A lane's values of one token, from dim `first` on.
template <KvType kType, int kCount>
__device__ __forceinline__ void StoreLane(const KvLayout& layout, const LaneValues<kCount>& values,
                                          int token, int first, uint8_t* block) {
  uint8_t* const at = block + ValueOffset(layout, token, first);
  if constexpr (kType == KvType::kF32) {
    *reinterpret_cast<LaneValues<kCount>*>(at) = values;
  } else if constexpr (kType == KvType::kF16) {
    uint32_t pairs[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      pairs[i] = PackFloats(values.v[2 * i], values.v[2 * i + 1]);
    }
    if constexpr (kCount == 2) *reinterpret_cast<uint32_t*>(at) = pairs[0];
    if constexpr (kCount == 4) *reinterpret_cast<uint2*>(at) = make_uint2(pairs[0], pairs[1]);
    if constexpr (kCount == 8) {
      *reinterpret_cast<uint4*>(at) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  } else {
    constexpr int kGroup = 32;  // values of one scale, of kGroup / kCount lanes
    float largest = 0;
    bool is_finite = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      is_finite = is_finite && fabsf(values.v[i]) <= kLargestFloat;
      largest = fmaxf(largest, fabsf(values.v[i]));
    }
#pragma unroll
    for (int distance = kGroup / kCount / 2; distance > 0; distance /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
      is_finite = __shfl_xor_sync(kAllLanes, is_finite, distance) && is_finite;
    }
    const GroupScale scale = ScaleOf(largest, is_finite);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      reinterpret_cast<int8_t*>(at)[i] = static_cast<int8_t>(Quantized(scale, values.v[i]));
    }
    if (first % kGroup == 0) {
      *reinterpret_cast<uint16_t*>(block + ScaleOffset(layout, token, first / kGroup)) =
          static_cast<uint16_t>(scale.bits);
    }
  }
}

// Turns a lane's values with those of the lane that holds their partners; all dims are rotated.
template <int kCount>
__device__ __forceinline__ void RotateLane(const QkvRopeArgs& args, int row, int lane,
                                           LaneValues<kCount>& values) {
  const float2* const table = args.rotation + static_cast<int64_t>(row) * args.pairs;
  if (args.interleaved) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const float2 angle = table[(lane * kCount + i) / 2];
      const float a = values.v[i];
      const float b = values.v[i + 1];
      values.v[i] = fmaf(a, angle.x, b * -angle.y);
      values.v[i + 1] = fmaf(b, angle.x, a * angle.y);
    }
    return;
  }
  const int pair = lane % (kLanes / 2) * kCount;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float2 angle = table[pair + i];
    const float partner = __shfl_xor_sync(kAllLanes, values.v[i], kLanes / 2);
    const float sine = lane < kLanes / 2 ? -angle.y : angle.y;
    values.v[i] = fmaf(values.v[i], angle.x, partner * sine);
  }
}

// Heads of 32 * kCount values that are rotated whole or not at all: everything in registers.
template <KvType kType, int kCount>
__global__ void __launch_bounds__(kWarps* kLanes)
    QkvRopeWhole(const __grid_constant__ QkvRopeArgs args) {
  constexpr int kDim = kLanes * kCount;
  const int lane = threadIdx.x % kLanes;
  const int row = blockIdx.y;
  const int index = blockIdx.x * kWarps + threadIdx.x / kLanes;
  LetNextGridStart();
  if (index >= args.n_head + 2 * args.cache.n_head_kv) return;
  const WarpHead warp = HeadOf(args, index);
  // What does not depend on the kernels before: the step's tables, the weights.
  const int first = lane * kCount;
  const int token = args.step.positions[row] % kPageTokens;
  uint8_t* const block = warp.is_q ? nullptr : BlockOfRow(args, row, warp);
  const float* const gamma = warp.is_q ? args.q_gamma : warp.is_v ? nullptr : args.k_gamma;
  using Values = LaneValues<kCount>;
  Values gammas = {};
  if (gamma != nullptr) gammas = *reinterpret_cast<const Values*>(gamma + first);
  WaitForPreviousGrid();
  const float* const in = warp.is_q   ? args.q + row * args.q_stride
                          : warp.is_v ? args.v + row * args.v_stride
                                      : args.k + row * args.k_stride;
  if (warp.is_q && gamma == nullptr && args.pairs == 0) return;
  Values values = *reinterpret_cast<const Values*>(in + warp.head * kDim + first);
  if (gamma != nullptr) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) squares = fmaf(values.v[i], values.v[i], squares);
    const float factor = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(kDim) + args.eps);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values.v[i] = values.v[i] * factor * gammas.v[i];
  }
  if (!warp.is_v && args.pairs > 0) RotateLane(args, row, lane, values);
  if (warp.is_q) {
    float* const out = args.q + row * args.q_stride + warp.head * kDim + first;
    *reinterpret_cast<Values*>(out) = values;
    return;
  }
  StoreLane<kType>(args.cache.layout, values, token, first, block);
  if (warp.is_v && token == 0) ClearTail(args, row, lane, block);
}

// Whether QkvRopeWhole can take it: what it reads at once is aligned.
bool IsWhole(const QkvRopeArgs& args) {
  const int dim = args.cache.layout.head_dim;
  if ((reinterpret_cast<uintptr_t>(args.q_gamma) | reinterpret_cast<uintptr_t>(args.k_gamma)) %
          16 !=
      0) {
    return false;
  }
  const auto is_aligned = [](const float* values, int64_t stride) {
    return reinterpret_cast<uintptr_t>(values) % 16 == 0 && stride % 4 == 0;
  };
  return (dim == 64 || dim == 128 || dim == 256) && (args.pairs == 0 || 2 * args.pairs == dim) &&
         is_aligned(args.q, args.q_stride) && is_aligned(args.k, args.k_stride) &&
         is_aligned(args.v, args.v_stride);
}

template <KvType kType>
const void* WholeKernel(int dim) {
  switch (dim) {
    case 64:
      return reinterpret_cast<const void*>(&QkvRopeWhole<kType, 2>);
    case 128:
      return reinterpret_cast<const void*>(&QkvRopeWhole<kType, 4>);
    default:
      return reinterpret_cast<const void*>(&QkvRopeWhole<kType, 8>);
  }
}

const void* KernelOf(const QkvRopeArgs& args) {
  const KvLayout& layout = args.cache.layout;
  if (!IsWhole(args)) return reinterpret_cast<const void*>(&QkvRopeHeads);
  if (layout.type == KvType::kF32) return WholeKernel<KvType::kF32>(layout.head_dim);
  if (layout.type == KvType::kF16) return WholeKernel<KvType::kF16>(layout.head_dim);
  return WholeKernel<KvType::kQ8_0>(layout.head_dim);
}

}  // namespace

absl::Status QkvRopeStore(const QkvRopeArgs& args, cudaStream_t stream) {
  if (args.step.row_count == 0) return absl::OkStatus();
  const KvLayout& layout = args.cache.layout;
  if (layout.head_dim < 1 || layout.head_dim > kMaxHeadDim || 2 * args.pairs > layout.head_dim) {
    return absl::InvalidArgumentError(absl::StrCat("rotating ", 2 * args.pairs,
                                                   " values of a head of size ", layout.head_dim,
                                                   " (at most ", kMaxHeadDim, ")"));
  }
  constexpr int kMostRows = 65535;  // of a grid's second dimension
  if (args.step.row_count > kMostRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", args.step.row_count, " rows; at most ", kMostRows));
  }
  const int heads = args.n_head + 2 * args.cache.n_head_kv;
  const dim3 grid((heads + kWarps - 1) / kWarps, args.step.row_count);
  return LaunchEarly(KernelOf(args), grid, kWarps * kLanes, 0, args, args.is_early, stream,
                     "storing keys and values");
}

}  // namespace warpline::cuda
