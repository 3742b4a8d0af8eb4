// Dot products of activation rows with weight columns. Included once per target.
#if defined(WARPLINE_KERNELS_CPU_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLINE_KERNELS_CPU_DOT_INL_H_
#undef WARPLINE_KERNELS_CPU_DOT_INL_H_
#else
#define WARPLINE_KERNELS_CPU_DOT_INL_H_
#endif

#include <cstring>

#include "hwy/cache_control.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/cpu/vec16-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace warpline {
namespace HWY_NAMESPACE {

// TreeSum of up to sixteen accumulators at once, in order. The pairs of lanes that are added are
// those of TreeSum.
#if HWY_TARGET == HWY_AVX3
HWY_INLINE __m512 AddHalves(__m512 a, __m512 b) {  // [a: 8 sums | b: 8 sums]
  return _mm512_add_ps(_mm512_mask_blend_ps(0xFF00, a, b),
                       _mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(1, 0, 3, 2)));
}
HWY_INLINE __m512 AddQuarters(__m512 a, __m512 b) {  // [a0 b0 a1 b1], four sums each
  const __m512i swap =
      _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
  return _mm512_add_ps(_mm512_mask_blend_ps(0xF0F0, a, b), _mm512_permutex2var_ps(a, swap, b));
}
HWY_INLINE __m512 AddPairs(__m512 a, __m512 b) {  // in each quarter [a a b b]
  return _mm512_add_ps(_mm512_mask_blend_ps(0xCCCC, a, b),
                       _mm512_shuffle_ps(a, b, _MM_SHUFFLE(1, 0, 3, 2)));
}
HWY_INLINE __m512 AddNeighbours(__m512 a, __m512 b) {  // in each quarter [a b a b]
  const __m512i swap = _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);
  return _mm512_add_ps(_mm512_mask_blend_ps(0xAAAA, a, b), _mm512_permutex2var_ps(a, swap, b));
}

HWY_INLINE void TreeSums16(const Vec16* v, float* out) {
  // The steps interleave their operands; taking the inputs in this order makes the outputs come in
  // theirs.
  const __m512 q0 =
      AddQuarters(AddHalves(v[0].a.raw, v[8].a.raw), AddHalves(v[4].a.raw, v[12].a.raw));
  const __m512 q1 =
      AddQuarters(AddHalves(v[2].a.raw, v[10].a.raw), AddHalves(v[6].a.raw, v[14].a.raw));
  const __m512 q2 =
      AddQuarters(AddHalves(v[1].a.raw, v[9].a.raw), AddHalves(v[5].a.raw, v[13].a.raw));
  const __m512 q3 =
      AddQuarters(AddHalves(v[3].a.raw, v[11].a.raw), AddHalves(v[7].a.raw, v[15].a.raw));
  _mm512_storeu_ps(out, AddNeighbours(AddPairs(q0, q1), AddPairs(q2, q3)));
}

HWY_INLINE void TreeSums8(const Vec16* v, float* out) {
  const __m512 q0 =
      AddQuarters(AddHalves(v[0].a.raw, v[4].a.raw), AddHalves(v[2].a.raw, v[6].a.raw));
  const __m512 q1 =
      AddQuarters(AddHalves(v[1].a.raw, v[5].a.raw), AddHalves(v[3].a.raw, v[7].a.raw));
  const __m512 pairs = AddPairs(q0, q1);
  const __m512 sums = AddNeighbours(pairs, pairs);  // each sum twice
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm256_storeu_ps(out, _mm512_castps512_ps256(_mm512_permutexvar_ps(even, sums)));
}
#else
HWY_INLINE __m128 AddToFour(Vec16 v) {
  const __m256 eight = _mm256_add_ps(v.a.raw, v.b.raw);
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

HWY_INLINE void TreeSums4(const Vec16* v, float* out) {
  const __m128 a = AddToFour(v[0]), b = AddToFour(v[1]), c = AddToFour(v[2]), d = AddToFour(v[3]);
  const __m128 ab =
      _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));  // a0+a2 a1+a3 b0+b2 b1+b3
  const __m128 cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
  _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps(ab, cd, _MM_SHUFFLE(2, 0, 2, 0)),
                                _mm_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 1, 3, 1))));
}
#endif

// out[i] = TreeSum(v[i]). `out` has room for N rounded up to a multiple of sixteen.
template <int N>
HWY_INLINE void TreeSums(const Vec16 (&v)[N], float* out) {
#if HWY_TARGET == HWY_AVX3
  constexpr int kWhole = N / 16 * 16;
  for (int i = 0; i < kWhole; i += 16) TreeSums16(v + i, out + i);
  if constexpr (N - kWhole == 8) {
    TreeSums8(v + kWhole, out + kWhole);
  } else {
    for (int i = kWhole; i < N; ++i) out[i] = TreeSum(v[i]);
  }
#else
  constexpr int kWhole = N / 4 * 4;
  for (int i = 0; i < kWhole; i += 4) TreeSums4(v + i, out + i);
  for (int i = kWhole; i < N; ++i) out[i] = TreeSum(v[i]);
#endif
}

template <int R, int C>
HWY_INLINE void StoreTile(const Vec16 (&acc)[R * C], float* out, int64_t out_stride) {
  HWY_ALIGN float sums[(R * C + 15) / 16 * 16];
  TreeSums<R * C>(acc, sums);
  for (int r = 0; r < R; ++r) std::memcpy(out + r * out_stride, sums + r * C, C * sizeof(float));
}

// R rows times C columns of f32 weights.
template <int R, int C>
HWY_INLINE void DotTile(const float* x, int64_t x_stride, const float* w, int64_t w_stride,
                        int64_t k, float* out, int64_t out_stride) {
  Vec16 acc[R * C];
  for (int i = 0; i < R * C; ++i) acc[i] = Zero();
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    Vec16 column[C];
    for (int c = 0; c < C; ++c) column[c] = Load(w + c * w_stride + i);
    for (int r = 0; r < R; ++r) {
      const Vec16 row = Load(x + r * x_stride + i);
      for (int c = 0; c < C; ++c) acc[r * C + c] = Fma(row, column[c], acc[r * C + c]);
    }
  }
  if (i < k) {
    Vec16 column[C];
    for (int c = 0; c < C; ++c) column[c] = LoadPartial(w + c * w_stride + i, k - i);
    for (int r = 0; r < R; ++r) {
      const Vec16 row = LoadPartial(x + r * x_stride + i, k - i);
      for (int c = 0; c < C; ++c) acc[r * C + c] = Fma(row, column[c], acc[r * C + c]);
    }
  }
  StoreTile<R, C>(acc, out, out_stride);
}

constexpr int kTileRows = kWide ? 4 : 2;
constexpr int kTileColumns = kWide ? 6 : 3;

// All rows times C columns.
template <int C>
void DotColumns(const DotArgs& args, const float* w, int64_t w_stride, float* out) {
  int64_t r = 0;
  for (; r + kTileRows <= args.rows; r += kTileRows) {
    DotTile<kTileRows, C>(args.x + r * args.x_stride, args.x_stride, w, w_stride, args.k,
                          out + r * args.out_stride, args.out_stride);
  }
  for (; r < args.rows; ++r) {
    DotTile<1, C>(args.x + r * args.x_stride, args.x_stride, w, w_stride, args.k,
                  out + r * args.out_stride, args.out_stride);
  }
}

void DotF32(const DotArgs& args) {
  const float* w = reinterpret_cast<const float*>(args.w);
  const int64_t w_stride = args.w_stride_bytes / static_cast<int64_t>(sizeof(float));
  int64_t c = 0;
  for (; c + kTileColumns <= args.columns; c += kTileColumns) {
    DotColumns<kTileColumns>(args, w + c * w_stride, w_stride, args.out + c);
  }
  if constexpr (kTileColumns > 4) {  // what a page of pooled keys leaves over
    for (; c + 4 <= args.columns; c += 4) {
      DotColumns<4>(args, w + c * w_stride, w_stride, args.out + c);
    }
  }
  for (; c < args.columns; ++c) DotColumns<1>(args, w + c * w_stride, w_stride, args.out + c);
}

// Blocks of 32 values that fused kernels decode. Scales are converted to f32 for a run of blocks at
// a time: broadcasting them from memory is cheaper than converting them where they are used.
constexpr int kRunBlocks = 16;

// A half scale, a half minimum and 16 bytes: low nibbles are values 0 to 15, high ones 16 to 31.
struct Q41Block {
  static constexpr int64_t kBytes = 20;
  struct Scales {
    float d, m;
  };
  static HWY_INLINE void ConvertScales(const uint8_t* block, Scales* to) {
    // The four bytes behind are codes; what they convert to is dropped.
    const __m128i bits = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block));
    _mm_storel_pi(reinterpret_cast<__m64*>(to), _mm_cvtph_ps(bits));
  }
  static HWY_INLINE void Decode(const uint8_t* block, const Scales& scales, Vec16& first,
                                Vec16& second) {
    const Vec16 d = Set(scales.d);
    const Vec16 m = Set(scales.m);
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 4));
#if HWY_TARGET == HWY_AVX3
    // The sixteen possible values, then two look-ups by the low four bits of each lane.
    const Vec16 table = Fma(d, Vec16{hn::Iota(FloatTag(), 0.0f)}, m);
    const __m512i codes = _mm512_cvtepu8_epi32(bytes);
    first.a = NativeFloat{_mm512_permutexvar_ps(codes, table.a.raw)};
    second.a = NativeFloat{_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), table.a.raw)};
#else
    const __m128i mask = _mm_set1_epi8(15);
    const __m128i low = _mm_and_si128(bytes, mask);
    const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
    first = Fma(d, Codes(low), m);
    second = Fma(d, Codes(high), m);
#endif
  }
#if HWY_TARGET != HWY_AVX3
  static HWY_INLINE Vec16 Codes(__m128i bytes) {
    return {NativeFloat{_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))},
            NativeFloat{_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))}};
  }
#endif
};

// A half scale and 32 signed bytes.
struct Q80Block {
  static constexpr int64_t kBytes = 34;
  struct Scales {
    float d;
  };
  static HWY_INLINE void ConvertScales(const uint8_t* block, Scales* to) {
    uint16_t bits;
    std::memcpy(&bits, block, sizeof(bits));
    to->d = HalfToFloat(bits);
  }
  static HWY_INLINE void Decode(const uint8_t* block, const Scales& scales, Vec16& first,
                                Vec16& second) {
    const Vec16 d = Set(scales.d);
    const int8_t* codes = reinterpret_cast<const int8_t*>(block + 2);
    first = Mul(d, LoadBytes(codes));
    second = Mul(d, LoadBytes(codes + 16));
  }
};

// R rows times C columns over `count` blocks from block `first_block` on.
template <typename Block, int R, int C>
HWY_INLINE void FusedRun(const DotArgs& args, const uint8_t* w, int64_t first_block, int64_t count,
                         Vec16 (&acc)[R * C]) {
  const uint8_t* columns = w + first_block * Block::kBytes;
  typename Block::Scales scales[C][kRunBlocks];
  for (int c = 0; c < C; ++c) {
    const uint8_t* blocks = columns + c * args.w_stride_bytes;
    for (int64_t b = 0; b < count; ++b) {
      Block::ConvertScales(blocks + b * Block::kBytes, &scales[c][b]);
      // The same place of the next tile's columns.
      hwy::Prefetch(blocks + C * args.w_stride_bytes + b * Block::kBytes);
    }
  }
  for (int64_t b = 0; b < count; ++b) {
    const float* x = args.x + (first_block + b) * 32;
    for (int c = 0; c < C; ++c) {
      Vec16 first, second;
      Block::Decode(columns + c * args.w_stride_bytes + b * Block::kBytes, scales[c][b], first,
                    second);
      for (int r = 0; r < R; ++r) {
        acc[r * C + c] = Fma(Load(x + r * args.x_stride), first, acc[r * C + c]);
        acc[r * C + c] = Fma(Load(x + r * args.x_stride + 16), second, acc[r * C + c]);
      }
    }
  }
}

template <typename Block, int R, int C>
HWY_INLINE void FusedTile(const DotArgs& args, const uint8_t* w, float* out) {
  Vec16 acc[R * C];
  for (int i = 0; i < R * C; ++i) acc[i] = Zero();
  const int64_t block_count = args.k / 32;
  for (int64_t b = 0; b < block_count; b += kRunBlocks) {
    const int64_t count = block_count - b < kRunBlocks ? block_count - b : kRunBlocks;
    FusedRun<Block, R, C>(args, w, b, count, acc);
  }
  StoreTile<R, C>(acc, out, args.out_stride);
}

template <typename Block, int R, int C>
void FusedColumns(const DotArgs& args) {
  int64_t c = 0;
  for (; c + C <= args.columns; c += C) {
    FusedTile<Block, R, C>(args, args.w + c * args.w_stride_bytes, args.out + c);
  }
  for (; c < args.columns; ++c) {
    FusedTile<Block, R, 1>(args, args.w + c * args.w_stride_bytes, args.out + c);
  }
}

template <typename Block>
void FusedDot(const DotArgs& args) {
  if (args.rows == 1) return FusedColumns < Block, 1, kWide ? 8 : 4 > (args);
  if (args.rows == 2) return FusedColumns < Block, 2, kWide ? 4 : 2 > (args);
  if (args.rows == 3) return FusedColumns < Block, 3, kWide ? 4 : 2 > (args);
  return FusedColumns < Block, 4, kWide ? 4 : 1 > (args);
}

constexpr DotKernels MakeDotKernels() {
  return {.f32 = DotF32, .q4_1 = FusedDot<Q41Block>, .q8_0 = FusedDot<Q80Block>};
}

}  // namespace HWY_NAMESPACE
}  // namespace warpline
HWY_AFTER_NAMESPACE();

#endif  // the two targets
#endif  // the include guard of this target
