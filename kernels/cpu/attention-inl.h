// Attention of rows over one page of keys and values, with running maximum and sum. Included once
// per target. Keys lie transposed, so a register holds the scores of sixteen tokens and no sum
// across lanes is needed: a score is one chain of FMA over head_dim, a weighted value one chain
// over the page's tokens.
#if defined(WARPLINE_KERNELS_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLINE_KERNELS_CPU_ATTENTION_INL_H_
#undef WARPLINE_KERNELS_CPU_ATTENTION_INL_H_
#else
#define WARPLINE_KERNELS_CPU_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/simd_kernels.h"
#include "kernels/cpu/vec16-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace warpline {
namespace HWY_NAMESPACE {

constexpr int kRowBlock = kWide ? 6 : 2;     // rows of a register tile
constexpr int kVectorBlock = kWide ? 4 : 2;  // Vec16 of a register tile
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Loads sixteen values of the cache's type.
HWY_INLINE Vec16 LoadStored(const KvLayout& layout, const uint8_t* base, int64_t index) {
  if (layout.type == KvType::kF32) return Load(reinterpret_cast<const float*>(base) + index);
  if (layout.type == KvType::kF16)
    return LoadHalves(reinterpret_cast<const uint16_t*>(base) + index);
  return LoadBytes(reinterpret_cast<const int8_t*>(base) + index);
}

void DecodeKeys(const KvLayout& layout, const uint8_t* page, float* keys) {
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(page + layout.key_scale_offset);
  for (int d = 0; d < layout.head_dim; ++d) {
    for (int t = 0; t < kPageTokens; t += kLanes) {
      Vec16 v = LoadStored(layout, page, d * kPageTokens + t);
      if (layout.type == KvType::kQ8_0)
        v = Mul(v, LoadHalves(scales + d / layout.group * kPageTokens + t));
      Store(v, keys + d * kPageTokens + t);
    }
  }
}

void GatherKeys(const KvLayout& layout, const uint8_t* page, int first, int count, int column,
                float* keys) {
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(page + layout.key_scale_offset);
  for (int d = 0; d < layout.head_dim; ++d) {
    for (int t = 0; t < count; t += kLanes) {
      // Lanes beyond the count come from what follows in the page; they are not stored.
      Vec16 v = LoadStored(layout, page, d * kPageTokens + first + t);
      if (layout.type == KvType::kQ8_0)
        v = Mul(v, LoadHalves(scales + d / layout.group * kPageTokens + first + t));
      StoreUpTo(v, count - t, keys + d * kPageTokens + column + t);
    }
  }
}

// Lanes beyond head_dim come from what follows in the page (the cache ends with spare bytes);
// nobody uses them.
void DecodeValues(const KvLayout& layout, const uint8_t* page, int first, int last, float* values) {
  const uint8_t* base = page + layout.value_offset;
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(page + layout.value_scale_offset);
  const int padded = (layout.head_dim + kLanes - 1) / kLanes * kLanes;
  const int groups = layout.group > 0 ? layout.head_dim / layout.group : 0;
  for (int t = first; t < last; ++t) {
    float* out = values + t * padded;
    for (int d = 0; d < padded; d += kLanes) {
      Store(LoadStored(layout, base, t * layout.head_dim + d), out + d);
    }
    if (layout.type != KvType::kQ8_0) continue;
    for (int g = 0; g < groups; ++g) {
      const Vec16 scale = Set(HalfToFloat(scales[t * groups + g]));
      float* group = out + g * layout.group;
      for (int i = 0; i < layout.group; i += kLanes) {
        const int count = std::min(layout.group - i, kLanes);
        StoreUpTo(Mul(LoadUpTo(group + i, count), scale), count, group + i);
      }
    }
  }
}

// scores of R rows for tokens [0, 16 vectors).
template <int R>
HWY_INLINE void Scores(const AttentionTile& tile, int row, int vectors) {
  for (int v = 0; v < vectors; v += kVectorBlock) {
    Vec16 acc[R * kVectorBlock];
    for (int i = 0; i < R * kVectorBlock; ++i) acc[i] = Zero();
    const float* keys = tile.keys + v * kLanes;
    for (int d = 0; d < tile.head_dim; ++d, keys += kPageTokens) {
      Vec16 key[kVectorBlock];
      for (int i = 0; i < kVectorBlock; ++i) key[i] = Load(keys + i * kLanes);
      for (int r = 0; r < R; ++r) {
        const Vec16 q = Set(tile.queries[row + r][d]);
        for (int i = 0; i < kVectorBlock; ++i)
          acc[r * kVectorBlock + i] = Fma(q, key[i], acc[r * kVectorBlock + i]);
      }
    }
    const Vec16 scale = Set(tile.scale);
    for (int r = 0; r < R; ++r) {
      float* out = tile.scores + (row + r) * kPageTokens + v * kLanes;
      for (int i = 0; i < kVectorBlock; ++i)
        Store(Mul(acc[r * kVectorBlock + i], scale), out + i * kLanes);
    }
  }
}

constexpr int kPageVectors = kPageTokens / kLanes;

// Masks the scores of one row and finds the new maximum.
HWY_INLINE void MaskRow(const AttentionTile& tile, int row) {
  const int low = tile.low[row], high = tile.high[row];
  float* scores = tile.scores + row * kPageTokens;
  Vec16 largest = Set(tile.largest[row]);
  if (low == 0 && high == kPageTokens) {
    for (int v = 0; v < kPageVectors; ++v) largest = Max(largest, Load(scores + v * kLanes));
  } else {
    for (int v = 0; v < kPageVectors; ++v) {
      const Vec16 s = SelectRange(low - v * kLanes, high - v * kLanes, Load(scores + v * kLanes),
                                  Set(kMinusInfinity));
      Store(s, scores + v * kLanes);
      largest = Max(largest, s);
    }
  }
  tile.shifts[row] = MaxLane(largest);
}

// Scores of one row become exponentials, zero where masked.
HWY_INLINE void ExponentialsOfRow(const AttentionTile& tile, int row) {
  float* scores = tile.scores + row * kPageTokens;
  const Vec16 shift = Set(tile.shifts[row]);
  Vec16 sum[kPageVectors];
  for (int v = 0; v < kPageVectors; ++v) {
    sum[v] = ExpNonPositive(Sub(Load(scores + v * kLanes), shift));
    Store(sum[v], scores + v * kLanes);
  }
  const float total = TreeSum(Add(Add(sum[0], sum[1]), Add(sum[2], sum[3])));
  tile.total[row] = tile.total[row] * tile.corrections[row] + total;
}

// The same for all rows that see something; what was summed before is to be corrected to the new
// maximum.
void Exponentials(const AttentionTile& tile, int first, int last) {
  for (int row = first; row < last; ++row) MaskRow(tile, row);
  for (int row = first; row < last; row += kLanes) {
    const Vec16 shifts = LoadUpTo(tile.shifts + row, last - row);
    const Vec16 moved = Sub(LoadUpTo(tile.largest + row, last - row), shifts);
    StoreUpTo(ExpNonPositive(moved), last - row, tile.corrections + row);
    StoreUpTo(shifts, last - row, tile.largest + row);
  }
  for (int row = first; row < last; ++row) ExponentialsOfRow(tile, row);
}

template <int R, int V>
HWY_INLINE void WeightedBlock(const AttentionTile& tile, int row, int first_dim) {
  Vec16 acc[R * V];
  for (int i = 0; i < R * V; ++i) acc[i] = Zero();
  const float* scores = tile.scores + row * kPageTokens;
  for (int t = tile.low[row]; t < tile.high[row]; ++t) {
    const float* values = tile.values + t * tile.padded_dim + first_dim;
    Vec16 value[V];
    for (int i = 0; i < V; ++i) value[i] = Load(values + i * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec16 p = Set(scores[r * kPageTokens + t]);
      for (int i = 0; i < V; ++i) acc[r * V + i] = Fma(p, value[i], acc[r * V + i]);
    }
  }
  for (int r = 0; r < R; ++r) {
    float* out = tile.sums + (row + r) * tile.padded_dim + first_dim;
    const Vec16 correction = Set(tile.corrections[row + r]);
    for (int i = 0; i < V; ++i) {
      Store(Fma(Load(out + i * kLanes), correction, acc[r * V + i]), out + i * kLanes);
    }
  }
}

// Adds the weighted values of R rows that see the same tokens.
template <int R>
HWY_INLINE void WeightedValues(const AttentionTile& tile, int row) {
  int d = 0;
  for (; d + kVectorBlock * kLanes <= tile.padded_dim; d += kVectorBlock * kLanes) {
    WeightedBlock<R, kVectorBlock>(tile, row, d);
  }
  for (; d < tile.padded_dim; d += kLanes) WeightedBlock<R, 1>(tile, row, d);
}

void RunTile(const AttentionTile& tile) {
  int first = 0, last = tile.row_count;
  while (first < last && tile.low[first] >= tile.high[first]) ++first;
  while (last > first && tile.low[last - 1] >= tile.high[last - 1]) --last;
  if (first == last) return;
  // Vectors beyond the last visible token stay unscored; they are masked.
  const int needed = (tile.high[last - 1] + kLanes - 1) / kLanes;
  const int vectors = (needed + kVectorBlock - 1) / kVectorBlock * kVectorBlock;
  int row = first;
  for (; row + kRowBlock <= last; row += kRowBlock) Scores<kRowBlock>(tile, row, vectors);
  for (; kRowBlock > 3 && row + 3 <= last; row += 3) Scores<3>(tile, row, vectors);
  for (; row < last; ++row) Scores<1>(tile, row, vectors);
  Exponentials(tile, first, last);
  for (row = first; row < last;) {
    int same = 1;
    while (same < kRowBlock && row + same < last && tile.low[row + same] == tile.low[row] &&
           tile.high[row + same] == tile.high[row]) {
      ++same;
    }
    if (same == kRowBlock) {
      WeightedValues<kRowBlock>(tile, row);
      row += kRowBlock;
    } else if (kRowBlock > 3 && same >= 3) {
      WeightedValues<3>(tile, row);
      row += 3;
    } else {
      WeightedValues<1>(tile, row);
      row += 1;
    }
  }
}

void FinishAttention(const float* sums, float total, int head_dim, float* out) {
  for (int d = 0; d < head_dim; d += kLanes) {
    StoreUpTo(Div(Load(sums + d), Set(total)), head_dim - d, out + d);
  }
}

constexpr AttentionKernels MakeAttentionKernels() {
  return {.decode_keys = DecodeKeys,
          .decode_values = DecodeValues,
          .gather_keys = GatherKeys,
          .tile = RunTile,
          .finish = FinishAttention};
}

}  // namespace HWY_NAMESPACE
}  // namespace warpline
HWY_AFTER_NAMESPACE();

#endif  // the two targets
#endif  // the include guard of this target
