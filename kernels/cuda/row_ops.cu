#include <cuda_runtime.h>

#include <algorithm>

#include "base/status.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/early_launch.h"
#include "kernels/cuda/half_math.h"
#include "kernels/cuda/mma_ops.cuh"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/row_scale.cuh"

namespace warpline::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxGridY = 65535;

// A block for `kThreads` columns of some rows.
dim3 GridOf(const FloatRows& rows) {
  return dim3(static_cast<unsigned>((rows.width + kThreads - 1) / kThreads),
              static_cast<unsigned>(std::min(rows.row_count, kMaxGridY)));
}

bool IsEmpty(const FloatRows& rows) { return rows.row_count == 0 || rows.width == 0; }

__device__ __forceinline__ float Sigmoid(float x) { return 1 / (1 + expf(-x)); }

// One block a row.
__global__ void __launch_bounds__(kThreads) Norm(const __grid_constant__ NormArgs args) {
  const int64_t row = blockIdx.x;
  const float* const x = args.in.data + row * args.in.stride;
  float* const y = args.out.data + row * args.out.stride;
  const int width = static_cast<int>(args.in.width);
  WaitForPreviousGrid();
  LetNextGridStart();
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += kThreads) sum = fmaf(x[i], x[i], sum);
  const float mean = BlockSum<kThreads>(sum) / static_cast<float>(width);
  const float factor = 1 / sqrtf(mean + args.eps);
  float peak = 0;
  for (int i = threadIdx.x; i < width; i += kThreads) {
    float value = x[i] * factor * (args.gamma == nullptr ? 1 : args.gamma[i]);
    if (args.accumulate) value += y[i];
    y[i] = value;
    peak = fmaxf(peak, fabsf(value));
  }
  if (args.halves == nullptr) return;
  const int exponent = ScaleExponent(BlockMax<kThreads>(peak));
  const float scale = PowerOfTwo(exponent);
  if (threadIdx.x == 0) args.row_scale[row] = PowerOfTwo(-exponent);
  const int padded = static_cast<int>(RoundUp(width, kPadK));
  uint16_t* const halves = args.halves + row * padded;
  // Each thread takes what it has written itself.
  for (int i = threadIdx.x; i < padded; i += kThreads) {
    halves[i] = static_cast<uint16_t>(HalfFromFloat(i < width ? y[i] * scale : 0));
  }
}

// The same for rows that a block can hold.
template <int kRuns>
__global__ void __launch_bounds__(kNormThreads) NormHeld(const __grid_constant__ NormArgs args) {
  const int64_t row = blockIdx.x;
  HeldRow<kRuns> gamma;
  if (args.gamma != nullptr) gamma = LoadHeld<kRuns>(args.gamma, args.in.width);
  WaitForPreviousGrid();
  LetNextGridStart();
  HeldRow<kRuns> x = LoadHeld<kRuns>(args.in.data + row * args.in.stride, args.in.width);
  NormHeldRow(args, row, gamma, x);
}

const void* NormKernel(const NormArgs& args) {
  switch (HeldRuns(args)) {
    case 1:
      return reinterpret_cast<const void*>(&NormHeld<1>);
    case 2:
      return reinterpret_cast<const void*>(&NormHeld<2>);
    case 4:
      return reinterpret_cast<const void*>(&NormHeld<4>);
    default:
      return reinterpret_cast<const void*>(&Norm);
  }
}

__global__ void __launch_bounds__(kThreads) Finish(const __grid_constant__ FinishArgs args) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= args.out.width) return;
  const float bias = args.bias == nullptr ? 0 : args.bias[column];
  for (int64_t row = blockIdx.y; row < args.out.row_count; row += gridDim.y) {
    float value = args.in.data[row * args.in.stride + column];
    value = args.bias == nullptr ? value * args.scale : fmaf(value, args.scale, bias);
    if (args.row_gate != nullptr) value *= Sigmoid(args.row_gate[row]);
    if (args.soft_cap > 0) value = args.soft_cap * tanhf(value / args.soft_cap);
    float* const out = args.out.data + row * args.out.stride + column;
    *out = args.accumulate ? *out + value : value;
  }
}

__device__ __forceinline__ float Activate(Activation activation, float x) {
  if (activation == Activation::kSilu) return x * Sigmoid(x);
  constexpr float kRootTwoOverPi = 0.797884560802865f;
  const float inner = kRootTwoOverPi * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1 + tanhf(inner));
}

__global__ void __launch_bounds__(kThreads)
    ActivateKernel(Activation activation, FloatRows gate, FloatRows up) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= gate.width) return;
  for (int64_t row = blockIdx.y; row < gate.row_count; row += gridDim.y) {
    float* const value = gate.data + row * gate.stride + column;
    *value = Activate(activation, *value) * up.data[row * up.stride + column];
  }
}

// As arguments of a kernel: nothing is to be copied before the launch.
constexpr int kMostIds = 256;
struct RowIds {
  int32_t ids[kMostIds];
};

__global__ void __launch_bounds__(kThreads)
    Choose(FloatRows in, const __grid_constant__ RowIds chosen, FloatRows out) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= out.width) return;
  for (int64_t row = blockIdx.y; row < out.row_count; row += gridDim.y) {
    out.data[row * out.stride + column] = in.data[chosen.ids[row] * in.stride + column];
  }
}

__global__ void __launch_bounds__(kThreads) Sum(const __grid_constant__ WeightedSumArgs args) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t width = args.out.width;
  if (column >= width) return;
  for (int64_t row = blockIdx.y; row < args.out.row_count; row += gridDim.y) {
    const float* const weights = args.weights + row * args.slots;
    const float* const y = args.y + row * args.slots * width + column;
    float sum = weights[0] * y[0];
    for (int slot = 1; slot < args.slots; ++slot) sum = fmaf(weights[slot], y[slot * width], sum);
    if (args.shared != nullptr) sum += args.shared[row * width + column];
    float* const out = args.out.data + row * args.out.stride + column;
    *out = args.accumulate ? *out + sum : sum;
  }
}

}  // namespace

int HeldRuns(const NormArgs& args) {
  const auto is_aligned = [](const FloatRows& rows) {
    return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride % 4 == 0;
  };
  if (args.in.width % 4 != 0 || !is_aligned(args.in) || !is_aligned(args.out) ||
      reinterpret_cast<uintptr_t>(args.gamma) % 16 != 0) {
    return 0;
  }
  const int64_t runs = RoundUp(args.in.width, kPadK) / 4;
  for (const int held : {1, 2, 4}) {
    if (runs <= int64_t{held} * kNormThreads) return held;
  }
  return 0;
}

absl::Status NormRows(const NormArgs& args, cudaStream_t stream) {
  if (IsEmpty(args.in)) return absl::OkStatus();
  return LaunchEarly(NormKernel(args), dim3(static_cast<unsigned>(args.in.row_count)),
                     HeldRuns(args) > 0 ? kNormThreads : kThreads, 0, args, args.is_early, stream,
                     "a norm");
}

absl::Status FinishRows(const FinishArgs& args, cudaStream_t stream) {
  if (IsEmpty(args.out)) return absl::OkStatus();
  Finish<<<GridOf(args.out), kThreads, 0, stream>>>(args);
  return LaunchStatus("finishing a product");
}

absl::Status ActivateRows(Activation activation, const FloatRows& gate, const FloatRows& up,
                          cudaStream_t stream) {
  if (IsEmpty(gate)) return absl::OkStatus();
  ActivateKernel<<<GridOf(gate), kThreads, 0, stream>>>(activation, gate, up);
  return LaunchStatus("an activation");
}

absl::Status ChooseRows(const FloatRows& in, absl::Span<const int32_t> ids, const FloatRows& out,
                        cudaStream_t stream) {
  for (size_t first = 0; first < ids.size(); first += kMostIds) {
    const absl::Span<const int32_t> some = ids.subspan(first, kMostIds);
    RowIds chosen;
    std::copy(some.begin(), some.end(), chosen.ids);
    FloatRows rows = out;
    rows.data += static_cast<int64_t>(first) * out.stride;
    rows.row_count = static_cast<int64_t>(some.size());
    if (IsEmpty(rows)) continue;
    Choose<<<GridOf(rows), kThreads, 0, stream>>>(in, chosen, rows);
    WL_RETURN_IF_ERROR(LaunchStatus("choosing rows"));
  }
  return absl::OkStatus();
}

absl::Status WeightedSum(const WeightedSumArgs& args, cudaStream_t stream) {
  if (IsEmpty(args.out)) return absl::OkStatus();
  Sum<<<GridOf(args.out), kThreads, 0, stream>>>(args);
  return LaunchStatus("summing expert outputs");
}

}  // namespace warpline::cuda
