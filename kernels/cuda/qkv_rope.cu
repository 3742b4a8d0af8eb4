#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/half_math.h"
#include "kernels/cuda/qkv_rope.h"

namespace warpline::cuda {
namespace {

constexpr int kWarps = 4;  // of a block; each takes one head of one row
constexpr int kLanes = 32;
constexpr uint32_t kAllLanes = ~0u;

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

// One token of one block. int8: the scale of a group is its largest magnitude / 127 as a half; a
// group that is not finite gets a NaN scale, so that reading it is not finite either.
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
    bool is_finite = largest <= 3.402823466e38f;
    for (int distance = layout.group / 2; distance > 0; distance /= 2) {  // group: 8, 16 or 32
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
      is_finite = __shfl_xor_sync(kAllLanes, is_finite, distance) && is_finite;
    }
    const uint32_t bits = is_finite ? HalfFromFloat(largest / 127.0f) : 0x7E00;
    const float scale = LowFloat(bits);
    const float inverse = is_finite && scale > 0 ? 1.0f / scale : 0.0f;
    const float scaled = is_finite ? value * inverse : 0.0f;
    if (!is_live) continue;
    *reinterpret_cast<int8_t*>(at) =
        static_cast<int8_t>(rintf(fminf(127.0f, fmaxf(-127.0f, scaled))));
    if (d % layout.group == 0) {
      *reinterpret_cast<uint16_t*>(block + ScaleOffset(layout, token, d / layout.group)) =
          static_cast<uint16_t>(bits);
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

// Warps take the heads of q, then of k, then of v.
__global__ void __launch_bounds__(kWarps* kLanes)
    QkvRopeHeads(const __grid_constant__ QkvRopeArgs args) {
  __shared__ float head_values[kWarps][kMaxHeadDim];
  const int lane = threadIdx.x % kLanes;
  const int row = blockIdx.y;
  int head = blockIdx.x * kWarps + threadIdx.x / kLanes;
  if (head >= args.n_head + 2 * args.cache.n_head_kv) return;
  const int dim = args.cache.layout.head_dim;
  const bool is_q = head < args.n_head;
  if (!is_q) head -= args.n_head;
  const bool is_v = !is_q && head >= args.cache.n_head_kv;
  if (is_v) head -= args.cache.n_head_kv;

  const float* const gamma = is_q ? args.q_gamma : is_v ? nullptr : args.k_gamma;
  if (is_q && gamma == nullptr && args.pairs == 0) return;
  const float* const in = is_q   ? args.q + row * args.q_stride
                          : is_v ? args.v + row * args.v_stride
                                 : args.k + row * args.k_stride;
  float* const values = head_values[threadIdx.x / kLanes];
  for (int d = lane; d < dim; d += kLanes) values[d] = in[head * dim + d];
  __syncwarp();
  if (gamma != nullptr) NormHead(gamma, args.eps, dim, lane, values);
  if (!is_v && args.pairs > 0) RotateHead(args, row, lane, values);
  if (is_q) {
    float* const out = args.q + row * args.q_stride + head * dim;
    for (int d = lane; d < dim; d += kLanes) out[d] = values[d];
    return;
  }
  const int position = args.step.positions[row];
  const int32_t page = PagesOfRow(args.step, row)[position / kPageTokens];
  uint8_t* const block = args.cache.data + BlockOffset(args.cache, page, head, is_v);
  StoreHead(args.cache.layout, values, position % kPageTokens, lane, block);
  if (is_v && position % kPageTokens == 0) ClearTail(args, row, lane, block);
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
  QkvRopeHeads<<<grid, kWarps * kLanes, 0, stream>>>(args);
  return LaunchStatus("storing keys and values");
}

}  // namespace warpline::cuda
