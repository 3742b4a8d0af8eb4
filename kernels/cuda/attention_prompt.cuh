// The kernel of prompt attention. Of three warpgroups, one brings keys and values by bulk copies
// and two take 64 rows each; a row is a token and one of the heads that share the KV head. The
// scores of the next block are computed while this one's weights are made and multiplied.
#pragma once

#include "kernels/cuda/async_ops.cuh"
#include "kernels/cuda/attention_ops.cuh"
#include "kernels/cuda/attention_prompt.h"
#include "kernels/cuda/attention_wgmma.cuh"

namespace warpline::cuda {

constexpr int kPromptRows = 128;  // of a block; a multiple of 64 for each consumer warpgroup
constexpr int kPromptThreads = 384;
constexpr int kConsumerWarps = 8;
constexpr int kPromptStages = 2;

template <int kDim>
struct PromptShape {
  static constexpr int kTiles = kDim / 64;  // of 128-byte rows
  // Keys of a block: as many as registers and shared memory hold.
  static constexpr int kKeys = kDim == 256 ? 64 : 192;
  static constexpr int kPages = kKeys / kPageTokens;
  static constexpr int kPageBytes = kPageTokens * kDim * 2;
  static constexpr int kTileBytes = kPageTokens * 128;  // of one page
  static constexpr int kBlockBytes = kPages * kPageBytes;
  static constexpr int kQueryBytes = kPromptRows * kDim * 2;
  static constexpr int kKeysAt = kQueryBytes;
  static constexpr int kValuesAt = kKeysAt + kPromptStages * kBlockBytes;
  static constexpr int kBarriersAt = kValuesAt + kPromptStages * kBlockBytes;
  static constexpr int kSharedBytes = kBarriersAt + 4 * kPromptStages * 8;
};

#if defined(WL_SM90A)

// The barriers of a block, and where a ring stands.
struct PromptBarriers {
  uint32_t base;
  __device__ __forceinline__ uint32_t FullKeys(int stage) const { return base + 8 * stage; }
  __device__ __forceinline__ uint32_t FullValues(int stage) const {
    return base + 8 * (kPromptStages + stage);
  }
  __device__ __forceinline__ uint32_t EmptyKeys(int stage) const {
    return base + 8 * (2 * kPromptStages + stage);
  }
  __device__ __forceinline__ uint32_t EmptyValues(int stage) const {
    return base + 8 * (3 * kPromptStages + stage);
  }
};
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ RingPlace Next() const {
    return stage + 1 == kPromptStages ? RingPlace{0, parity ^ 1} : RingPlace{stage + 1, parity};
  }
};

// What one block of threads works on.
struct PromptTile {
  int kv_head;
  int group;        // heads of a KV head
  int first_row;    // token * group + head, of the sequence's rows of this step
  int first_block;  // of keys
  int end_block;
};

template <int kDim>
__device__ __forceinline__ PromptTile TileOf(const PromptArgs& args) {
  constexpr int kKeys = PromptShape<kDim>::kKeys;
  PromptTile tile;
  tile.group = args.job.n_head / args.job.cache.n_head_kv;
  const int tiles = (args.row_count * tile.group + kPromptRows - 1) / kPromptRows;
  tile.kv_head = blockIdx.x / tiles;
  // The longest first, so that short ones fill the end.
  tile.first_row = (tiles - 1 - static_cast<int>(blockIdx.x) % tiles) * kPromptRows;
  const int last_token = min(args.row_count - 1, (tile.first_row + kPromptRows - 1) / tile.group);
  const int first_position = args.first_position + tile.first_row / tile.group;
  tile.first_block = FirstSeen(args.job, first_position) / kKeys;
  tile.end_block = (args.first_position + last_token) / kKeys + 1;
  return tile;
}

// q as halves, scaled so that scores are logarithms to base 2, into shared tiles.
template <int kDim>
__device__ __forceinline__ void LoadPromptQueries(const PromptArgs& args, const PromptTile& tile,
                                                  uint8_t* shared) {
  constexpr int kPieces = kDim / 8;
  const float scale = args.job.scale * kLog2E;
  for (int i = threadIdx.x; i < kPromptRows * kPieces; i += kPromptThreads) {
    const int row = i / kPieces;
    const int piece = i % kPieces;
    const int packed = tile.first_row + row;
    const int token = min(packed / tile.group, args.row_count - 1);
    const int head = tile.kv_head * tile.group + packed % tile.group;
    const float* const q =
        args.job.q + (args.first_row + token) * args.job.q_stride + head * kDim + 8 * piece;
    uint32_t halves[4];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      halves[pair] = PackFloats(q[2 * pair] * scale, q[2 * pair + 1] * scale);
    }
    *reinterpret_cast<uint4*>(shared + (piece / 8 * kPromptRows + row) * 128 +
                              (piece % 8 ^ row % 8) * 16) =
        make_uint4(halves[0], halves[1], halves[2], halves[3]);
  }
  // The products read this through the asynchronous proxy.
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// One thread: brings the blocks, the last first.
template <int kDim>
__device__ __forceinline__ void ProducePrompt(const PromptArgs& args, const PromptTile& tile,
                                              uint32_t shared, const PromptBarriers& barriers) {
  using Shape = PromptShape<kDim>;
  const KvView& cache = args.job.cache;
  // Pages behind the last one are masked; any that holds finite values will do.
  const int last_page = (args.first_position + args.row_count - 1) / kPageTokens;
  const auto page_of = [&](int block, int i) {
    const int page = min(block * Shape::kPages + i, last_page);
    return args.pages == nullptr ? page : __ldg(args.pages + page);
  };
  int32_t pages[Shape::kPages];
  for (int i = 0; i < Shape::kPages; ++i) pages[i] = page_of(tile.end_block - 1, i);
  RingPlace place;
  for (int block = tile.end_block - 1; block >= tile.first_block; --block) {
    int32_t next[Shape::kPages];
#pragma unroll
    for (int i = 0; i < Shape::kPages; ++i) next[i] = page_of(max(block - 1, 0), i);
#pragma unroll
    for (int is_value = 0; is_value < 2; ++is_value) {
      const uint32_t full =
          is_value ? barriers.FullValues(place.stage) : barriers.FullKeys(place.stage);
      BarrierWait(is_value ? barriers.EmptyValues(place.stage) : barriers.EmptyKeys(place.stage),
                  place.parity ^ 1);
      BarrierExpect(full, Shape::kBlockBytes);
      const uint32_t to = shared + (is_value ? Shape::kValuesAt : Shape::kKeysAt) +
                          place.stage * Shape::kBlockBytes;
#pragma unroll
      for (int i = 0; i < Shape::kPages; ++i) {
        const uint8_t* const from =
            cache.data + BlockOffset(cache, pages[i], tile.kv_head, is_value != 0);
        if (is_value || Shape::kPages == 1) {
          BulkLoad(to + i * Shape::kPageBytes, from, Shape::kPageBytes, full);
          continue;
        }
#pragma unroll
        for (int t = 0; t < Shape::kTiles; ++t) {  // The keys of all pages become one long tile.
          BulkLoad(to + (t * Shape::kPages + i) * Shape::kTileBytes, from + t * Shape::kTileBytes,
                   Shape::kTileBytes, full);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < Shape::kPages; ++i) pages[i] = next[i];
    place = place.Next();
  }
}

// 64 rows of one consumer warpgroup. A lane holds rows g and g + 8 of its warp's 16, "low" and
// "high".
template <int kDim>
class PromptConsumer {
 public:
  using Shape = PromptShape<kDim>;
  static constexpr int kKeys = Shape::kKeys;

  __device__ __forceinline__ PromptConsumer(const PromptArgs& args, const PromptTile& tile,
                                            uint32_t shared, const PromptBarriers& barriers)
      : args_(args), tile_(tile), shared_(shared), barriers_(barriers) {
    const int first = warpgroup_ * 64;
    low_row_ = tile.first_row + first + static_cast<int>(threadIdx.x / 32 % 4) * 16 + lane_ / 4;
    const auto position = [&](int row) { return args.first_position + row / tile.group; };
    low_position_ = position(low_row_);
    high_position_ = position(low_row_ + 8);
    full_end_ = position(tile.first_row + first) + 1;
    full_begin_ = FirstSeen(args.job, position(tile.first_row + first + 63));
  }

  __device__ __forceinline__ void Run() {
    RingPlace place;
    BarrierWait(barriers_.FullKeys(0), 0);
    WgmmaFence();
    AddScores(0);
    WgmmaCommit();
    WgmmaWait<0>();
    HoldSums(scores_);
    Release(barriers_.EmptyKeys(0));
    MakeWeights(tile_.end_block - 1);
    PackWeights();
    for (int block = tile_.end_block - 2; block >= tile_.first_block; --block) {
      const RingPlace next = place.Next();
      BarrierWait(barriers_.FullKeys(next.stage), next.parity);
      HoldSums(sums_);
      WgmmaFence();
      AddScores(next.stage);
      WgmmaCommit();
      BarrierWait(barriers_.FullValues(place.stage), place.parity);
      AddValues(place.stage);
      WgmmaCommit();
      WgmmaWait<1>();
      HoldSums(scores_);
      Release(barriers_.EmptyKeys(next.stage));
      MakeWeights(block);
      WgmmaWait<0>();
      HoldSums(sums_);
      Release(barriers_.EmptyValues(place.stage));
      Correct();
      PackWeights();
      place = next;
    }
    BarrierWait(barriers_.FullValues(place.stage), place.parity);
    HoldSums(sums_);
    WgmmaFence();
    AddValues(place.stage);
    WgmmaCommit();
    WgmmaWait<0>();
    HoldSums(sums_);
    StoreRow(low_row_, low_total_, 0);
    StoreRow(low_row_ + 8, high_total_, 2);
  }

 private:
  __device__ __forceinline__ void Release(uint32_t barrier) const {
    if (lane_ == 0) BarrierArrive(barrier);
  }

  __device__ __forceinline__ void AddScores(int stage) {
    const uint32_t q = shared_ + warpgroup_ * 64 * 128;
    const uint32_t keys = shared_ + Shape::kKeysAt + stage * Shape::kBlockBytes;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const int tile = step / 4;
      const int in_tile = step % 4 * 32;
      AttentionWgmma<kKeys>::Scores(
          scores_, RowsDescriptor(q + tile * kPromptRows * 128 + in_tile, 16),
          RowsDescriptor(keys + tile * kKeys * 128 + in_tile, 16), step > 0);
    }
  }

  __device__ __forceinline__ void AddValues(int stage) {
    const uint32_t values = shared_ + Shape::kValuesAt + stage * Shape::kBlockBytes;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      AttentionWgmma<kDim>::Values(
          sums_, &weights_[4 * step],
          RowsDescriptor(values + step / 4 * Shape::kPageBytes + step % 4 * 16 * 128,
                         Shape::kTileBytes));
    }
  }

  // Masks the scores of a block and makes them weights under the new maximum.
  __device__ __forceinline__ void MakeWeights(int block) {
    const int first = block * kKeys;
    if (first + kKeys > full_end_ || first < full_begin_) {
      const int low_begin = FirstSeen(args_.job, low_position_);
      const int high_begin = FirstSeen(args_.job, high_position_);
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = first + 8 * j + 2 * (lane_ % 4) + e;
          if (key > low_position_ || key < low_begin) scores_[4 * j + e] = kMaskedScore;
          if (key > high_position_ || key < high_begin) scores_[4 * j + 2 + e] = kMaskedScore;
        }
      }
    }
    float low = low_largest_;
    float high = high_largest_;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      low = fmaxf(low, fmaxf(scores_[4 * j], scores_[4 * j + 1]));
      high = fmaxf(high, fmaxf(scores_[4 * j + 2], scores_[4 * j + 3]));
    }
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      low = fmaxf(low, __shfl_xor_sync(~0u, low, distance));
      high = fmaxf(high, __shfl_xor_sync(~0u, high, distance));
    }
    low_correction_ = Exp2(low_largest_ - low);
    high_correction_ = Exp2(high_largest_ - high);
    low_largest_ = low;
    high_largest_ = high;
    low_total_ *= low_correction_;
    high_total_ *= high_correction_;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        scores_[4 * j + e] = Exp2(scores_[4 * j + e] - low);
        scores_[4 * j + 2 + e] = Exp2(scores_[4 * j + 2 + e] - high);
      }
      low_total_ += scores_[4 * j] + scores_[4 * j + 1];
      high_total_ += scores_[4 * j + 2] + scores_[4 * j + 3];
    }
  }

  __device__ __forceinline__ void PackWeights() {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      weights_[i] = PackFloats(scores_[2 * i], scores_[2 * i + 1]);
    }
  }

  __device__ __forceinline__ void Correct() {
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      sums_[4 * j] *= low_correction_;
      sums_[4 * j + 1] *= low_correction_;
      sums_[4 * j + 2] *= high_correction_;
      sums_[4 * j + 3] *= high_correction_;
    }
  }

  __device__ __forceinline__ void StoreRow(int row, float total, int first) const {
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    const int token = row / tile_.group;
    if (token >= args_.row_count) return;
    const AttentionJob& job = args_.job;
    const int step_row = args_.first_row + token;
    const int column = (tile_.kv_head * tile_.group + row % tile_.group) * kDim + 2 * (lane_ % 4);
    float* const out = job.out + step_row * job.out_stride;
    const float factor = 1 / total;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int at = column + 8 * j + e;
        out[at] = GatedBy(job, step_row, at, sums_[4 * j + first + e] * factor);
      }
    }
  }

  const PromptArgs& args_;
  const PromptTile& tile_;
  const uint32_t shared_;
  const PromptBarriers& barriers_;
  const int lane_ = threadIdx.x % 32;
  const int warpgroup_ = static_cast<int>(threadIdx.x / 128) - 1;
  int low_row_, low_position_, high_position_;
  int full_begin_, full_end_;  // keys that all 64 rows see
  float low_largest_ = kMaskedScore, high_largest_ = kMaskedScore;
  float low_total_ = 0, high_total_ = 0;
  float low_correction_ = 1, high_correction_ = 1;
  float scores_[kKeys / 2];
  float sums_[kDim / 2] = {};
  uint32_t weights_[kKeys / 4];
};

#endif  // WL_SM90A

// Grid: tiles of rows for each KV head.
template <int kDim>
__global__ void __launch_bounds__(kPromptThreads, 1)
    PromptAttention(const __grid_constant__ PromptArgs args) {
#if defined(WL_SM90A)
  using Shape = PromptShape<kDim>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = SharedAddress(shared);
  const PromptBarriers barriers = {base + Shape::kBarriersAt};
  const PromptTile tile = TileOf<kDim>(args);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kPromptStages; ++stage) {
      BarrierInit(barriers.FullKeys(stage), 1);
      BarrierInit(barriers.FullValues(stage), 1);
      BarrierInit(barriers.EmptyKeys(stage), kConsumerWarps);
      BarrierInit(barriers.EmptyValues(stage), kConsumerWarps);
    }
    BarrierInitFence();
  }
  LoadPromptQueries<kDim>(args, tile, shared);
  __syncthreads();
  if (threadIdx.x < 128) {
    ReleaseRegisters<24>();
    if (threadIdx.x == 0) ProducePrompt<kDim>(args, tile, base, barriers);
  } else {
    TakeRegisters<240>();
    PromptConsumer<kDim>(args, tile, base, barriers).Run();
  }
#endif
}

}  // namespace warpline::cuda
