// One part of a decode row's keys for the heads of one KV head. A producer warp brings pages by
// bulk copies, all keys first, then all values; four consumer warps take 16 tokens of each page.
// Since a part has at most kMaxPartPages pages, its scores stay in registers and the softmax is
// made once. The MMA's 16 rows are the heads.
#pragma once

#include "kernels/cuda/async_ops.cuh"
#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_ops.cuh"
#include "kernels/cuda/mma_ops.cuh"

namespace warpline::cuda {

constexpr int kDecodeWarps = 4;  // consumers; the producer is the warp behind them
constexpr int kDecodeThreads = 32 * (kDecodeWarps + 1);
constexpr int kWarpTokens = kPageTokens / kDecodeWarps;

// kWide: more than 8 heads for a KV head, so that the upper half of the MMA's rows is used.
template <KvType kType, int kDim, bool kWide>
struct DecodeShape {
  static constexpr bool kInt8 = kType == KvType::kQ8_0;
  static constexpr int kRows = kWide ? 16 : 8;
  static constexpr int kScaleOffset = kPageTokens * kDim * (kInt8 ? 1 : 2);
  static constexpr int kGroups = kDim / 32;  // scales of a token
  static constexpr int kBlockBytes = kScaleOffset + (kInt8 ? 2 * kPageTokens * kGroups : 0);
  // Of a multiprocessor. With many sums a thread needs the registers of two.
  static constexpr int kBlocks = kDim == 256 || (kWide && kDim == 128) ? 1 : 2;
  static constexpr int kMostRingBytes = (kBlocks == 1 ? 200 : 100) << 10;
  static constexpr int kMostStages = 2 * kMaxPartPages;
  static constexpr int kStages =
      kMostRingBytes / kBlockBytes < kMostStages ? kMostRingBytes / kBlockBytes : kMostStages;
  static constexpr int kExchangeStride = kDim + 4;  // floats; rows fall into different banks
  static constexpr int kExchangeBytes = 4 * kDecodeWarps * kRows * kExchangeStride;
  static constexpr int kRingBytes = kStages * kBlockBytes;
  static constexpr int kSharedBytes = kRingBytes > kExchangeBytes ? kRingBytes : kExchangeBytes;
  // int8 rows of 128 bytes: the MMA's column 2 t + e is token 4 e + t, which spreads what lanes
  // read over all banks.
  static constexpr bool kSpread = kInt8 && kDim != 64;
};

#if defined(WL_SM90A)

// Four 8 x 8 matrices of halves like LoadMatrices, each transposed.
__device__ __forceinline__ void LoadTransposed(uint32_t address, uint32_t (&out)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

template <KvType kType, int kDim, bool kWide>
class DecodePart {
 public:
  using Shape = DecodeShape<kType, kDim, kWide>;
  static constexpr int kSteps = kDim / 16;              // MMA steps over a key
  static constexpr int kColumns = kDim / 8;             // MMA tiles over a value
  static constexpr int kSums = kWide ? 4 : 2;           // of an MMA that are used
  static constexpr float kBias = Shape::kInt8 ? 6 : 0;  // weights up to 2^6: scales make them small

  // The heads' q, scaled so that scores are logarithms to base 2, as the MMA's A.
  __device__ __forceinline__ void LoadQueries(const AttentionJob& job, int row, int kv_head) {
    const int group = job.n_head / job.cache.n_head_kv;
    const float scale = job.scale * kLog2E;
#pragma unroll
    for (int half = 0; half < (kWide ? 2 : 1); ++half) {
      const int head = kv_head * group + min(g_ + 8 * half, group - 1);
      const float* const q = job.q + row * job.q_stride + head * kDim;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        // int8: a lane's 16 bytes of a token serve four steps, so these take dims in that order.
        const int low = Shape::kInt8 ? step / 4 * 64 + 16 * t_ + step % 4 * 4 : 16 * step + 2 * t_;
        const int high = Shape::kInt8 ? low + 2 : low + 8;
        q_[step][half] = PackFloats(q[low] * scale, q[low + 1] * scale);
        q_[step][2 + half] = PackFloats(q[high] * scale, q[high + 1] * scale);
      }
    }
  }

  // Scores of one page into scores_[page]; tokens outside of [low, high) are masked.
  __device__ __forceinline__ void AddKeys(const uint8_t* block, int page, int low, int high) {
    float sums[2][2][4] = {};  // [odd step][8 tokens]
    if constexpr (Shape::kInt8) {
      MultiplyInt8Keys(block, sums);
    } else {
      const uint32_t base = SharedAddress(block);
      const int token = token_ + lane_ % 8 + lane_ / 16 * 8;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int piece = 2 * step + lane_ / 8 % 2;
        uint32_t keys[4];
        LoadMatrices(base + (piece / 8 * kPageTokens + token) * 128 + (piece % 8 ^ token % 8) * 16,
                     keys);
        MultiplyAdd(sums[step % 2][0], q_[step], keys[0], keys[1]);
        MultiplyAdd(sums[step % 2][1], q_[step], keys[2], keys[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const int token = token_ + TokenOf(n, i % 2);
        const float score = sums[0][n][i] + sums[1][n][i];
        scores_[page][n][i] = token >= low && token < high ? score : kMaskedScore;
      }
    }
  }
  __device__ __forceinline__ void SkipKeys(int page) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) scores_[page][n][i] = kMaskedScore;
    }
  }

  // This warp's largest score of row g_ + 8 * half.
  __device__ __forceinline__ float Largest(int half) const {
    float largest = kMaskedScore;
#pragma unroll
    for (int page = 0; page < kMaxPartPages; ++page) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        largest = fmaxf(largest, fmaxf(scores_[page][n][2 * half], scores_[page][n][2 * half + 1]));
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    return fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
  }

  // Scores become weights; gives their sum.
  __device__ __forceinline__ float MakeWeights(int half, float largest) {
    float total = 0;
#pragma unroll
    for (int page = 0; page < kMaxPartPages; ++page) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores_[page][n][i] = Exp2(scores_[page][n][i] - (largest - kBias));
          total += scores_[page][n][i];
        }
      }
    }
    total += __shfl_xor_sync(~0u, total, 1);
    return total + __shfl_xor_sync(~0u, total, 2);
  }

  __device__ __forceinline__ void AddValues(const uint8_t* block, int page) {
    if constexpr (Shape::kInt8) {
      AddInt8Values(block, page);
      return;
    }
    uint32_t weights[4] = {};
#pragma unroll
    for (int half = 0; half < kSums / 2; ++half) {
      weights[half] = PackFloats(scores_[page][0][2 * half], scores_[page][0][2 * half + 1]);
      weights[2 + half] = PackFloats(scores_[page][1][2 * half], scores_[page][1][2 * half + 1]);
    }
    const uint32_t base = SharedAddress(block);
    const int token = token_ + lane_ % 16;
#pragma unroll
    for (int column = 0; column < kColumns; column += 2) {
      const int piece = column + lane_ / 16;
      uint32_t values[4];
      LoadTransposed(base + (piece / 8 * kPageTokens + token) * 128 + (piece % 8 ^ token % 8) * 16,
                     values);
      MultiplyAdd(sums_[column], weights, values[0], values[1]);
      MultiplyAdd(sums_[column + 1], weights, values[2], values[3]);
    }
  }

  // This warp's weighted sums to shared memory, [kRows][kExchangeStride].
  __device__ __forceinline__ void StoreSums(float* out) const {
#pragma unroll
    for (int half = 0; half < kSums / 2; ++half) {
      float* const row = out + (g_ + 8 * half) * Shape::kExchangeStride;
      const int i = 2 * half;
#pragma unroll
      for (int column = 0; column < kColumns; column += 2) {
        if constexpr (Shape::kInt8) {  // even and odd dims of 16
          *reinterpret_cast<float4*>(row + 8 * column + 4 * t_) =
              make_float4(sums_[column][i], sums_[column + 1][i], sums_[column][i + 1],
                          sums_[column + 1][i + 1]);
        } else {
          *reinterpret_cast<float2*>(row + 8 * column + 2 * t_) =
              make_float2(sums_[column][i], sums_[column][i + 1]);
          *reinterpret_cast<float2*>(row + 8 * column + 8 + 2 * t_) =
              make_float2(sums_[column + 1][i], sums_[column + 1][i + 1]);
        }
      }
    }
  }

 private:
  // The token, of this warp's, that column 2 t_ + e of tile n stands for.
  __device__ __forceinline__ int TokenOf(int n, int e) const {
    return 8 * n + (Shape::kSpread ? 4 * e + t_ : 2 * t_ + e);
  }
  // The token of the MMA's column, or of row of a transposed load.
  __device__ static __forceinline__ int SpreadToken(int column) {
    return Shape::kSpread ? (column & 1) << 2 | column >> 1 : column;
  }
  // Where piece `piece` (16 bytes) of a token of int8 values lies in its block.
  __device__ static __forceinline__ int Int8Piece(int token, int piece) {
    if constexpr (kDim == 64) return token * 64 + (piece ^ (token >> 1 & 3)) * 16;
    return (piece / 8 * kPageTokens + token) * 128 + (piece % 8 ^ token % 8) * 16;
  }

  __device__ __forceinline__ void MultiplyInt8Keys(const uint8_t* block, float (&sums)[2][2][4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int token = token_ + 8 * n + SpreadToken(g_);
#pragma unroll
      for (int x = 0; x < kDim / 64; ++x) {
        const uint4 raw = *reinterpret_cast<const uint4*>(block + Int8Piece(token, 4 * x + t_));
        const uint32_t scale = Twice(*reinterpret_cast<const uint16_t*>(
            block + Shape::kScaleOffset + 2 * (token * Shape::kGroups + 2 * x + t_ / 2)));
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t turned = words[i] ^ kSignBits;
          MultiplyAdd(sums[x % 2][n], q_[4 * x + i], Mul2(HalvesOfTurned(turned, kBytes01), scale),
                      Mul2(HalvesOfTurned(turned, kBytes23), scale));
        }
      }
    }
  }

  // The scales of values are multiplied into the weights; the values themselves are exact halves.
  __device__ __forceinline__ void AddInt8Values(const uint8_t* block, int page) {
    const int row = lane_ & 7;
    const int token = token_ + (lane_ >> 3 & 1) * 8 + SpreadToken(row);
    const uint32_t base = SharedAddress(block);
#pragma unroll
    for (int group = 0; group < Shape::kGroups; ++group) {
      uint32_t weights[4] = {};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float scale[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          scale[e] = LowFloat(*reinterpret_cast<const uint16_t*>(
              block + Shape::kScaleOffset +
              2 * ((token_ + TokenOf(n, e)) * Shape::kGroups + group)));
        }
#pragma unroll
        for (int half = 0; half < kSums / 2; ++half) {
          weights[2 * n + half] = PackFloats(scores_[page][n][2 * half] * scale[0],
                                             scores_[page][n][2 * half + 1] * scale[1]);
        }
      }
      uint32_t raw[4];  // 16 dims of all tokens, then the next 16
      LoadTransposed(base + Int8Piece(token, 2 * group + lane_ / 16), raw);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t low = raw[2 * i] ^ kSignBits;
        const uint32_t high = raw[2 * i + 1] ^ kSignBits;
        float(&even)[4] = sums_[4 * group + 2 * i];
        float(&odd)[4] = sums_[4 * group + 2 * i + 1];
        MultiplyAdd(even, weights, HalvesOfTurned(low, kBytes02), HalvesOfTurned(high, kBytes02));
        MultiplyAdd(odd, weights, HalvesOfTurned(low, kBytes13), HalvesOfTurned(high, kBytes13));
      }
    }
  }

  const int lane_ = threadIdx.x % 32;
  const int g_ = lane_ / 4;
  const int t_ = lane_ % 4;
  const int token_ = static_cast<int>(threadIdx.x / 32) * kWarpTokens;  // this warp's first
  uint32_t q_[kSteps][4] = {};
  float scores_[kMaxPartPages][2][kSums];  // [page][8 tokens]
  float sums_[kColumns][4] = {};
};

// Waits for all consumer warps.
__device__ __forceinline__ void ConsumersMeet() {
  asm volatile("bar.sync 1, %0;" ::"n"(32 * kDecodeWarps) : "memory");
}

#endif  // WL_SM90A

// Grid: [parts][kv heads][rows].
template <KvType kType, int kDim, bool kWide>
__global__ void __launch_bounds__(kDecodeThreads, DecodeShape<kType, kDim, kWide>::kBlocks)
    DecodeAttention(const __grid_constant__ DecodeArgs args) {
#if defined(WL_SM90A)
  using Shape = DecodeShape<kType, kDim, kWide>;
  extern __shared__ __align__(1024) uint8_t ring[];
  __shared__ __align__(8) uint64_t barriers[2 * Shape::kStages];
  __shared__ float warp_largest[kDecodeWarps][Shape::kRows];
  __shared__ float warp_total[kDecodeWarps][Shape::kRows];
  // The step's tables, and pages that it stores nothing in, were there before its first kernel.
  LetNextGridStart();
  const AttentionJob& job = args.job;
  const int kv_head = blockIdx.y;
  const int row = blockIdx.z;
  const int position = job.step.positions[row];
  const int first_seen = FirstSeen(job, position);
  const int part_pages = PartPages(position + 1 - first_seen);
  const int part = first_seen / kPageTokens / part_pages + blockIdx.x;
  const int first_page = max(part * part_pages, first_seen / kPageTokens);
  const int pages = min((part + 1) * part_pages, position / kPageTokens + 1) - first_page;
  if (pages <= 0) return;
  const int first_stored = FirstStored(job.step, row) / kPageTokens - first_page;

  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const uint32_t full = SharedAddress(barriers);
  const uint32_t empty = full + 8 * Shape::kStages;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      BarrierInit(full + 8 * stage, 1);
      BarrierInit(empty + 8 * stage, kDecodeWarps);
    }
    BarrierInitFence();
  }
  __syncthreads();

  if (warp == kDecodeWarps) {  // The producer.
    const int32_t* const ids = PagesOfRow(job.step, row) + first_page;
    const int32_t id = lane < pages ? ids[lane] : 0;
    for (int i = 0; i < 2 * pages; ++i) {
      const bool is_value = i >= pages;
      const int32_t page = __shfl_sync(~0u, id, is_value ? i - pages : i);
      if ((is_value ? i - pages : i) >= first_stored) WaitForPreviousGrid();
      if (lane == 0) {
        const int stage = i % Shape::kStages;
        if (i >= Shape::kStages) BarrierWait(empty + 8 * stage, (i / Shape::kStages & 1) ^ 1);
        BarrierExpect(full + 8 * stage, Shape::kBlockBytes);
        BulkLoad(SharedAddress(ring) + stage * Shape::kBlockBytes,
                 job.cache.data + BlockOffset(job.cache, page, kv_head, is_value),
                 Shape::kBlockBytes, full + 8 * stage);
      }
      __syncwarp();
    }
    return;
  }

  WaitForPreviousGrid();
  DecodePart<kType, kDim, kWide> part_sums;
  part_sums.LoadQueries(job, row, kv_head);
#pragma unroll
  for (int i = 0; i < kMaxPartPages; ++i) {
    if (i >= pages) {
      part_sums.SkipKeys(i);
      continue;
    }
    const int stage = i % Shape::kStages;
    const int start = (first_page + i) * kPageTokens;
    BarrierWait(full + 8 * stage, i / Shape::kStages & 1);
    part_sums.AddKeys(ring + stage * Shape::kBlockBytes, i, first_seen - start,
                      position + 1 - start);
    __syncwarp();
    if (lane == 0) BarrierArrive(empty + 8 * stage);
  }

  // One maximum for all warps, so that their sums can be added as they are.
  const int g = lane / 4;
#pragma unroll
  for (int half = 0; half < Shape::kRows / 8; ++half) {
    const float largest = part_sums.Largest(half);
    if (lane % 4 == 0) warp_largest[warp][g + 8 * half] = largest;
  }
  ConsumersMeet();
#pragma unroll
  for (int half = 0; half < Shape::kRows / 8; ++half) {
    float largest = kMaskedScore;
#pragma unroll
    for (int i = 0; i < kDecodeWarps; ++i) {
      largest = fmaxf(largest, warp_largest[i][g + 8 * half]);
    }
    const float total = part_sums.MakeWeights(half, largest);
    if (lane % 4 == 0) warp_total[warp][g + 8 * half] = total;
  }

#pragma unroll
  for (int i = 0; i < kMaxPartPages; ++i) {
    if (i >= pages) break;
    const int load = pages + i;
    const int stage = load % Shape::kStages;
    BarrierWait(full + 8 * stage, load / Shape::kStages & 1);
    part_sums.AddValues(ring + stage * Shape::kBlockBytes, i);
    __syncwarp();
    if (lane == 0) BarrierArrive(empty + 8 * stage);
  }
  ConsumersMeet();  // The ring is free.

  float* const exchange = reinterpret_cast<float*>(ring);
  constexpr int kWarpFloats = Shape::kRows * Shape::kExchangeStride;
  part_sums.StoreSums(exchange + warp * kWarpFloats);
  ConsumersMeet();
  const int64_t slot =
      (static_cast<int64_t>(row) * job.cache.n_head_kv + kv_head) * args.max_parts + blockIdx.x;
  for (int i = threadIdx.x; i < Shape::kRows * kDim / 4; i += 32 * kDecodeWarps) {
    const int head = i / (kDim / 4);
    const int dim = i % (kDim / 4) * 4;
    const float* const from = exchange + head * Shape::kExchangeStride + dim;
    float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll
    for (int other = 1; other < kDecodeWarps; ++other) {
      const float4 more = *reinterpret_cast<const float4*>(from + other * kWarpFloats);
      sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
    }
    if (args.max_parts == 1) {
      const int group = job.n_head / job.cache.n_head_kv;
      if (head < group) {
        float total = 0;
        for (int other = 0; other < kDecodeWarps; ++other) total += warp_total[other][head];
        const int column = (kv_head * group + head) * kDim + dim;
        StoreOut(job, row, column, sum.x / total);
        StoreOut(job, row, column + 1, sum.y / total);
        StoreOut(job, row, column + 2, sum.z / total);
        StoreOut(job, row, column + 3, sum.w / total);
      }
      continue;
    }
    *reinterpret_cast<float4*>(args.values + (slot * kMaxDecodeGroup + head) * kDim + dim) = sum;
  }
  if (args.max_parts == 1) return;
  if (threadIdx.x < Shape::kRows) {
    float largest = kMaskedScore;
    float total = 0;
    for (int i = 0; i < kDecodeWarps; ++i) {
      largest = fmaxf(largest, warp_largest[i][threadIdx.x]);
      total += warp_total[i][threadIdx.x];
    }
    args.sums[slot * kMaxDecodeGroup + threadIdx.x] = make_float2(largest, total);
  }
#endif
}

constexpr int kJoinThreads = 512;

// Joins the parts of one head of one row, in their order. Grid: [heads][rows].
template <int kDim>
__global__ void __launch_bounds__(kJoinThreads) JoinParts(const __grid_constant__ DecodeArgs args) {
#if defined(WL_SM90A)
  constexpr int kLanes = kDim / 4;  // threads of a row of values
  constexpr int kTeams = kJoinThreads / kLanes;
  __shared__ float4 team_values[kTeams][kLanes];
  __shared__ float team_total[kTeams];
  LetNextGridStart();
  WaitForPreviousGrid();
  const AttentionJob& job = args.job;
  const int head = blockIdx.x;
  const int row = blockIdx.y;
  const int group = job.n_head / job.cache.n_head_kv;
  const int position = job.step.positions[row];
  const int first_seen = FirstSeen(job, position);
  const int part_pages = PartPages(position + 1 - first_seen);
  const int parts = position / kPageTokens / part_pages - first_seen / kPageTokens / part_pages + 1;
  const int64_t first = (static_cast<int64_t>(row) * job.cache.n_head_kv + head / group) *
                            args.max_parts * kMaxDecodeGroup +
                        head % group;
  float largest = kMaskedScore;
  for (int part = threadIdx.x % 32; part < parts; part += 32) {
    largest = fmaxf(largest, args.sums[first + part * kMaxDecodeGroup].x);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
  }
  const int team = threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  float4 values = make_float4(0, 0, 0, 0);
  float total = 0;
#pragma unroll 4
  for (int part = team; part < parts; part += kTeams) {
    const float2 sums = args.sums[first + part * kMaxDecodeGroup];
    const float4 more = *reinterpret_cast<const float4*>(
        args.values + (first + part * kMaxDecodeGroup) * kDim + 4 * lane);
    const float weight = Exp2(sums.x - largest);
    values.x = fmaf(weight, more.x, values.x);
    values.y = fmaf(weight, more.y, values.y);
    values.z = fmaf(weight, more.z, values.z);
    values.w = fmaf(weight, more.w, values.w);
    total = fmaf(weight, sums.y, total);
  }
  team_values[team][lane] = values;
  if (lane == 0) team_total[team] = total;
  __syncthreads();
  for (int dim = threadIdx.x; dim < kDim; dim += kJoinThreads) {
    float value = 0;
    float all = 0;
    for (int i = 0; i < kTeams; ++i) {
      value += reinterpret_cast<const float*>(team_values[i])[dim];
      all += team_total[i];
    }
    const int column = head * kDim + dim;
    StoreOut(job, row, column, value / all);
  }
#endif
}

}  // namespace warpline::cuda
