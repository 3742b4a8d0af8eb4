// What is done to one row at a time: norms, rotation, activations, the ends of matrix products,
// storing keys and values. Included once per target.
#if defined(WARPLINE_KERNELS_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLINE_KERNELS_CPU_ROWS_INL_H_
#undef WARPLINE_KERNELS_CPU_ROWS_INL_H_
#else
#define WARPLINE_KERNELS_CPU_ROWS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/simd_kernels.h"
#include "kernels/cpu/vec16-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace warpline {
namespace HWY_NAMESPACE {

void RmsNorm(const float* in, const float* gamma, float eps, int64_t width, float* out) {
  Vec16 squares = Zero();
  for (int64_t i = 0; i < width; i += kLanes) {
    const Vec16 v = LoadUpTo(in + i, width - i);
    squares = Fma(v, v, squares);
  }
  const float mean = TreeSum(squares) / static_cast<float>(width);
  const Vec16 factor = Set(1.0f / std::sqrt(mean + eps));
  for (int64_t i = 0; i < width; i += kLanes) {
    Vec16 v = Mul(LoadUpTo(in + i, width - i), factor);
    if (gamma != nullptr) v = Mul(v, LoadUpTo(gamma + i, width - i));
    StoreUpTo(v, width - i, out + i);
  }
}

HWY_INLINE Vec16 Finished(const Products& products, int64_t i, int64_t count) {
  Vec16 y = Mul(LoadUpTo(products.dots + i, count), Set(products.scale));
  if (products.bias != nullptr) y = Add(y, LoadUpTo(products.bias + i, count));
  return y;
}

void Finish(const Products& products, int64_t columns, bool accumulate, float* out) {
  for (int64_t i = 0; i < columns; i += kLanes) {
    const int64_t count = columns - i;
    Vec16 y = Finished(products, i, count);
    if (accumulate) y = Add(LoadUpTo(out + i, count), y);
    StoreUpTo(y, count, out + i);
  }
}

void FinishGated(const Products& gate, const Products& up, Activation activation, int64_t columns,
                 float* out) {
  for (int64_t i = 0; i < columns; i += kLanes) {
    const int64_t count = columns - i;
    const Vec16 g = Finished(gate, i, count);
    const Vec16 active = activation == Activation::kSilu ? TimesSigmoid(g, g) : GeluTanh(g);
    StoreUpTo(Mul(active, Finished(up, i, count)), count, out + i);
  }
}

// a' = a cos - b sin, b' = b cos + a sin; the table holds -sin where the partner is subtracted.
void Rotate(const float* table, int n_rot, bool interleaved, float* values) {
  const float* sines = table + n_rot;
  if (interleaved) {
    for (int i = 0; i < n_rot; i += kLanes) {
      const Vec16 v = LoadUpTo(values + i, n_rot - i);
      const Vec16 turned = Mul(SwapPairs(v), LoadUpTo(sines + i, n_rot - i));
      StoreUpTo(Fma(v, LoadUpTo(table + i, n_rot - i), turned), n_rot - i, values + i);
    }
    return;
  }
  const int half = n_rot / 2;
  for (int i = 0; i < half; i += kLanes) {
    const int count = half - i;
    const Vec16 a = LoadUpTo(values + i, count);
    const Vec16 b = LoadUpTo(values + half + i, count);
    const Vec16 c = LoadUpTo(table + i, count);
    StoreUpTo(Fma(a, c, Mul(b, LoadUpTo(sines + i, count))), count, values + i);
    StoreUpTo(Fma(b, c, Mul(a, LoadUpTo(sines + half + i, count))), count, values + half + i);
  }
}

void Scale(float factor, int64_t width, float* values) {
  for (int64_t i = 0; i < width; i += kLanes) {
    StoreUpTo(Mul(LoadUpTo(values + i, width - i), Set(factor)), width - i, values + i);
  }
}

void AddScaled(const float* values, float factor, bool first, int64_t width, float* out) {
  const Vec16 f = Set(factor);
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t count = width - i;
    const Vec16 v = LoadUpTo(values + i, count);
    StoreUpTo(first ? Mul(f, v) : Fma(f, v, LoadUpTo(out + i, count)), count, out + i);
  }
}

void AddRow(const float* values, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t count = width - i;
    StoreUpTo(Add(LoadUpTo(out + i, count), LoadUpTo(values + i, count)), count, out + i);
  }
}

void SoftCap(float cap, int64_t width, float* values) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const Vec16 v = Div(LoadUpTo(values + i, width - i), Set(cap));
    StoreUpTo(Mul(Set(cap), Tanh(v)), width - i, values + i);
  }
}

void Softmax(int64_t width, float* values) {
  const float kLowest = -std::numeric_limits<float>::infinity();
  Vec16 largest = Set(kLowest);
  for (int64_t i = 0; i < width; i += kLanes) {
    const int count = static_cast<int>(std::min<int64_t>(width - i, kLanes));
    largest = Max(largest, SelectRange(0, count, LoadUpTo(values + i, count), Set(kLowest)));
  }
  const Vec16 shift = Set(MaxLane(largest));
  Vec16 total = Zero();
  for (int64_t i = 0; i < width; i += kLanes) {
    const int count = static_cast<int>(std::min<int64_t>(width - i, kLanes));
    const Vec16 e = Exp(Sub(LoadUpTo(values + i, count), shift));
    total = Add(total, SelectRange(0, count, e, Zero()));
    StoreUpTo(e, count, values + i);
  }
  const Vec16 sum = Set(TreeSum(total));
  for (int64_t i = 0; i < width; i += kLanes) {
    StoreUpTo(Div(LoadUpTo(values + i, width - i), sum), width - i, values + i);
  }
}

float Sigmoid(float value) {
  float lanes[kLanes];
  Store(TimesSigmoid(Set(1.0f), Set(value)), lanes);
  return lanes[0];
}

// One group to int8: the scale is the largest magnitude / 127, rounded to half. A group that is not
// finite gets a NaN scale, so that reading it is not finite either.
HWY_INLINE uint16_t QuantizeGroup(const float* in, int count, int8_t* out, int64_t out_stride) {
  float largest = 0;
  bool finite = true;
  for (int i = 0; i < count; ++i) {
    const float magnitude = std::fabs(in[i]);
    finite = finite && magnitude <= std::numeric_limits<float>::max();
    largest = std::max(largest, magnitude);
  }
  const uint16_t bits = finite ? FloatToHalf(largest / 127.0f) : uint16_t{0x7E00};
  const float scale = HalfToFloat(bits);
  const float inverse = finite && scale > 0 ? 1.0f / scale : 0.0f;
  for (int i = 0; i < count; ++i) {
    const float scaled = finite ? in[i] * inverse : 0.0f;
    out[i * out_stride] =
        static_cast<int8_t>(std::nearbyint(std::min(127.0f, std::max(-127.0f, scaled))));
  }
  return bits;
}

void StoreKv(const KvLayout& layout, const float* key, const float* value, int slot,
             uint8_t* page) {
  const int dim = layout.head_dim;
  if (layout.type == KvType::kF32) {
    float* keys = reinterpret_cast<float*>(page) + slot;
    for (int i = 0; i < dim; ++i) keys[i * kPageTokens] = key[i];
    std::memcpy(page + layout.value_offset + slot * dim * sizeof(float), value,
                dim * sizeof(float));
    return;
  }
  if (layout.type == KvType::kF16) {
    uint16_t* keys = reinterpret_cast<uint16_t*>(page) + slot;
    for (int i = 0; i < dim; ++i) keys[i * kPageTokens] = FloatToHalf(key[i]);
    uint16_t* values = reinterpret_cast<uint16_t*>(page + layout.value_offset) + slot * dim;
    for (int i = 0; i < dim; ++i) values[i] = FloatToHalf(value[i]);
    return;
  }
  const int groups = dim / layout.group;
  int8_t* keys = reinterpret_cast<int8_t*>(page) + slot;
  int8_t* values = reinterpret_cast<int8_t*>(page + layout.value_offset) + slot * dim;
  uint16_t* key_scales = reinterpret_cast<uint16_t*>(page + layout.key_scale_offset) + slot;
  uint16_t* value_scales =
      reinterpret_cast<uint16_t*>(page + layout.value_scale_offset) + slot * groups;
  for (int g = 0; g < groups; ++g) {
    const int first = g * layout.group;
    key_scales[g * kPageTokens] =
        QuantizeGroup(key + first, layout.group, keys + first * kPageTokens, kPageTokens);
    value_scales[g] = QuantizeGroup(value + first, layout.group, values + first, 1);
  }
}

constexpr RowKernels MakeRowKernels() {
  return {.rms_norm = RmsNorm,
          .finish = Finish,
          .finish_gated = FinishGated,
          .rotate = Rotate,
          .scale = Scale,
          .add_scaled = AddScaled,
          .add = AddRow,
          .soft_cap = SoftCap,
          .softmax = Softmax,
          .sigmoid = Sigmoid,
          .store_kv = StoreKv};
}

}  // namespace HWY_NAMESPACE
}  // namespace warpline
HWY_AFTER_NAMESPACE();

#endif  // the two targets
#endif  // the include guard of this target
