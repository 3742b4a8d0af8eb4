// Attention in float, one warp for each row and head, pages in their order. Slow and right: what
// the faster paths do not take, and what they are compared with.
#pragma once

#include "kernels/cuda/attention_ops.cuh"

namespace warpline::cuda {

constexpr int kGenericWarps = 4;  // of a block
constexpr int kMostDimsOfLane = kMaxHeadDim / 32;

// One stored value.
template <KvType kType>
__device__ __forceinline__ float LoadStored(const uint8_t* at) {
  if constexpr (kType == KvType::kF32) return *reinterpret_cast<const float*>(at);
  if constexpr (kType == KvType::kF16) return LowFloat(*reinterpret_cast<const uint16_t*>(at));
  return *reinterpret_cast<const int8_t*>(at);
}

template <KvType kType>
__device__ __forceinline__ float LoadScale(const KvLayout& layout, const uint8_t* block, int token,
                                           int dim) {
  if constexpr (kType != KvType::kQ8_0) return 1;
  return LowFloat(
      *reinterpret_cast<const uint16_t*>(block + ScaleOffset(layout, token, dim / layout.group)));
}

// q . key of one token; q lies in shared memory.
template <KvType kType>
__device__ __forceinline__ float ScoreOf(const KvLayout& layout, const float* q,
                                         const uint8_t* block, int token) {
  constexpr int kRun = kType == KvType::kF32 ? 4 : 8;  // neighbours: they share a piece and a scale
  float score = 0;
  for (int d = 0; d < layout.head_dim; d += kRun) {
    const uint8_t* const run = block + ValueOffset(layout, token, d);
    const int count = min(kRun, layout.head_dim - d);
    float sum = 0;
    for (int i = 0; i < count; ++i) {
      sum = fmaf(q[d + i], LoadStored<kType>(run + i * layout.value_bytes), sum);
    }
    score = fmaf(sum, LoadScale<kType>(layout, block, token, d), score);
  }
  return score;
}

// The running state of one warp: the largest score, the sum of weights, and weighted values of
// dims lane, lane + 32, ...
struct GenericSums {
  float largest = -INFINITY;
  float total = 0;
  float values[kMostDimsOfLane] = {};
};

// Adds tokens [low, high) of one page. `weights` is shared memory for kPageTokens of them.
template <KvType kType>
__device__ __forceinline__ void AddPage(const AttentionJob& job, const float* q,
                                        const uint8_t* keys, int low, int high, float* weights,
                                        GenericSums& sums) {
  const KvLayout& layout = job.cache.layout;
  const int lane = threadIdx.x % 32;
  float scores[2];
  float largest = sums.largest;
  for (int i = 0; i < 2; ++i) {
    const int token = lane + 32 * i;
    const bool is_seen = token >= low && token < high;
    scores[i] = is_seen ? ScoreOf<kType>(layout, q, keys, token) * job.scale : -INFINITY;
    largest = fmaxf(largest, scores[i]);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
  }
  // NaN and infinite scores must show in the result; a maximum passes NaN over.
  const float shift = largest == -INFINITY ? 0 : largest;
  const float correction = expf(sums.largest - shift);
  float total = 0;
  for (int i = 0; i < 2; ++i) {
    const float weight = expf(scores[i] - shift);
    weights[lane + 32 * i] = weight;
    total += weight;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    total += __shfl_xor_sync(~0u, total, distance);
  }
  __syncwarp();
  sums.total = fmaf(sums.total, correction, total);
  sums.largest = largest;
  const uint8_t* const values = keys + layout.block_bytes;  // the block behind the keys
#pragma unroll
  for (int i = 0; i < kMostDimsOfLane; ++i) {
    const int d = lane + 32 * i;
    if (d >= layout.head_dim) break;
    float sum = 0;
    for (int token = low; token < high; ++token) {
      const float value = LoadStored<kType>(values + ValueOffset(layout, token, d)) *
                          LoadScale<kType>(layout, values, token, d);
      sum = fmaf(weights[token], value, sum);
    }
    sums.values[i] = fmaf(sums.values[i], correction, sum);
  }
  __syncwarp();
}

template <KvType kType>
__global__ void __launch_bounds__(kGenericWarps * 32)
    AttendGeneric(const __grid_constant__ AttentionJob job) {
  __shared__ float shared_q[kGenericWarps][kMaxHeadDim];
  __shared__ float shared_weights[kGenericWarps][kPageTokens];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int head = blockIdx.x * kGenericWarps + warp;
  const int row = blockIdx.y;
  if (head >= job.n_head) return;
  const int dim = job.cache.layout.head_dim;
  const int kv_head = head / (job.n_head / job.cache.n_head_kv);
  float* const q = shared_q[warp];
  for (int d = lane; d < dim; d += 32) q[d] = job.q[row * job.q_stride + head * dim + d];
  __syncwarp();
  const int position = job.step.positions[row];
  const int first = FirstSeen(job, position);
  const int32_t* const pages = PagesOfRow(job.step, row);
  GenericSums sums;
  for (int page = first / kPageTokens; page <= position / kPageTokens; ++page) {
    const int start = page * kPageTokens;
    const uint8_t* const keys =
        job.cache.data + BlockOffset(job.cache, pages[page], kv_head, false);
    AddPage<kType>(job, q, keys, max(first - start, 0), min(position + 1 - start, kPageTokens),
                   shared_weights[warp], sums);
  }
#pragma unroll
  for (int i = 0; i < kMostDimsOfLane; ++i) {
    const int d = lane + 32 * i;
    if (d >= dim) break;
    const int column = head * dim + d;
    job.out[row * job.out_stride + column] = GatedBy(job, row, column, sums.values[i] / sums.total);
  }
}

}  // namespace warpline::cuda
