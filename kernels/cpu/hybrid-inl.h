// Convolutions, the DeltaNet recurrence, gates. Included once per target.
#if defined(WARPLINE_KERNELS_CPU_HYBRID_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLINE_KERNELS_CPU_HYBRID_INL_H_
#undef WARPLINE_KERNELS_CPU_HYBRID_INL_H_
#else
#define WARPLINE_KERNELS_CPU_HYBRID_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "kernels/cpu/hybrid_kernels.h"
#include "kernels/cpu/vec16-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace warpline {
namespace HWY_NAMESPACE {

void Conv(const float* const* columns, int taps, const float* kernel, int64_t stride, int64_t width,
          float* out) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t count = width - i;
    Vec16 sum = Zero();
    for (int j = 0; j < taps; ++j) {
      sum = Fma(LoadUpTo(kernel + j * stride + i, count), LoadUpTo(columns[j] + i, count), sum);
    }
    StoreUpTo(TimesSigmoid(sum, sum), count, out + i);
  }
}

void UnitNorm(float eps, float factor, int64_t width, float* values) {
  Vec16 squares = Zero();
  for (int64_t i = 0; i < width; i += kLanes) {
    const Vec16 v = LoadUpTo(values + i, width - i);
    squares = Fma(v, v, squares);
  }
  const Vec16 scale = Set(factor / std::sqrt(TreeSum(squares) + eps));
  for (int64_t i = 0; i < width; i += kLanes) {
    StoreUpTo(Mul(LoadUpTo(values + i, width - i), scale), width - i, values + i);
  }
}

constexpr int kSums = 4;  // partial sums over key dims: dim i belongs to sum i mod 4

HWY_INLINE Vec16 LoadColumns(bool full, int count, const float* from) {
  return full ? Load(from) : LoadUpTo(from, count);
}

// V registers of value dims; `count` of them where the last register is not full.
template <int V, bool kFull>
HWY_INLINE void DeltaColumns(const DeltaBlock& b, int first, int count) {
  const auto load = [&](const float* from, int v) {
    return LoadColumns(kFull, count - v * kLanes, from + v * kLanes);
  };
  const auto store = [&](Vec16 value, float* to, int v) {
    if (kFull) {
      Store(value, to + v * kLanes);
    } else {
      StoreUpTo(value, count - v * kLanes, to + v * kLanes);
    }
  };
  const auto total = [](const Vec16* sums, int v) {
    return Add(Add(sums[v], sums[V + v]), Add(sums[2 * V + v], sums[3 * V + v]));
  };
  for (int64_t t = 0; t < b.row_count; ++t) {
    const float* const k = b.k + t * b.qkv_stride;
    const float* const q = b.q + t * b.qkv_stride;
    const Vec16 decay = Set(b.decay[t * b.decay_stride]);
    const Vec16 beta = Set(b.beta[t * b.beta_stride]);
    Vec16 sums[kSums * V];
    for (Vec16& sum : sums) sum = Zero();
    const auto predict = [&](int i, int s) {
      for (int v = 0; v < V; ++v) {
        const Vec16 decayed = Mul(load(b.memory + int64_t{i} * b.head_dim + first, v), decay);
        sums[s * V + v] = Fma(Set(k[i]), decayed, sums[s * V + v]);
      }
    };
    int i = 0;
    for (; i + kSums <= b.head_dim; i += kSums) {
      for (int s = 0; s < kSums; ++s) predict(i + s, s);
    }
    for (int s = 0; i + s < b.head_dim; ++s) predict(i + s, s);
    Vec16 change[V];
    for (int v = 0; v < V; ++v) {
      const Vec16 value = load(b.v + t * b.qkv_stride + first, v);
      change[v] = Mul(beta, Sub(value, total(sums, v)));
    }
    for (Vec16& sum : sums) sum = Zero();
    const auto update = [&](int key, int s) {
      float* const memory = b.memory + int64_t{key} * b.head_dim + first;
      for (int v = 0; v < V; ++v) {
        const Vec16 m = Fma(Set(k[key]), change[v], Mul(load(memory, v), decay));
        store(m, memory, v);
        sums[s * V + v] = Fma(Set(q[key]), m, sums[s * V + v]);
      }
    };
    for (i = 0; i + kSums <= b.head_dim; i += kSums) {
      for (int s = 0; s < kSums; ++s) update(i + s, s);
    }
    for (int s = 0; i + s < b.head_dim; ++s) update(i + s, s);
    for (int v = 0; v < V; ++v) store(total(sums, v), b.out + t * b.out_stride + first, v);
  }
}

void RunDeltaBlock(const DeltaBlock& block) {
  constexpr int kRegisters = kWide ? 2 : 1;
  int first = 0;
  for (; first + kRegisters * kLanes <= block.columns; first += kRegisters * kLanes) {
    DeltaColumns<kRegisters, true>(block, first, kRegisters * kLanes);
  }
  for (; first < block.columns; first += kLanes) {
    const int count = std::min(kLanes, block.columns - first);
    if (count == kLanes) {
      DeltaColumns<1, true>(block, first, count);
    } else {
      DeltaColumns<1, false>(block, first, count);
    }
  }
}

void ScaledSilu(float divisor, int64_t width, float* values) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const Vec16 v = Div(LoadUpTo(values + i, width - i), Set(divisor));
    StoreUpTo(TimesSigmoid(v, v), width - i, values + i);
  }
}

void Mix(const float* values, const float* gates, int streams, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t count = width - i;
    Vec16 sum = Zero();
    for (int c = 0; c < streams; ++c) {
      sum = Add(sum, TimesSigmoid(LoadUpTo(values + c * width + i, count),
                                  LoadUpTo(gates + c * width + i, count)));
    }
    StoreUpTo(Div(sum, Set(static_cast<float>(streams))), count, out + i);
  }
}

float Dot(const float* a, const float* b, int64_t width) {
  Vec16 sum = Zero();
  for (int64_t i = 0; i < width; i += kLanes) {
    sum = Fma(LoadUpTo(a + i, width - i), LoadUpTo(b + i, width - i), sum);
  }
  return TreeSum(sum);
}

void Gate(const float* gate, GateKind kind, int64_t width, float* values) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t count = width - i;
    const Vec16 g = LoadUpTo(gate + i, count);
    const Vec16 factor = TimesSigmoid(kind == GateKind::kSilu ? g : Set(1.0f), g);
    StoreUpTo(Mul(LoadUpTo(values + i, count), factor), count, values + i);
  }
}

constexpr HybridKernels MakeHybridKernels() {
  return {.conv = Conv,
          .unit_norm = UnitNorm,
          .delta_block = RunDeltaBlock,
          .scaled_silu = ScaledSilu,
          .mix = Mix,
          .dot = Dot,
          .gate = Gate};
}

}  // namespace HWY_NAMESPACE
}  // namespace warpline
HWY_AFTER_NAMESPACE();

#endif  // the two targets
#endif  // the include guard of this target
