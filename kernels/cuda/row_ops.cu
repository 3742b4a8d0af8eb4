#include <cuda_runtime.h>

#include <algorithm>

#include "base/status.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/row_ops.h"

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

__global__ void __launch_bounds__(kThreads)
    Norm(FloatRows in, const float* gamma, float eps, bool accumulate, FloatRows out) {
  const int64_t row = blockIdx.x;
  const float* const x = in.data + row * in.stride;
  float* const y = out.data + row * out.stride;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < in.width; i += kThreads) sum = fmaf(x[i], x[i], sum);
  const float mean = BlockSum<kThreads>(sum) / static_cast<float>(in.width);
  const float factor = 1 / sqrtf(mean + eps);
  for (int64_t i = threadIdx.x; i < in.width; i += kThreads) {
    const float value = x[i] * factor * (gamma == nullptr ? 1 : gamma[i]);
    y[i] = accumulate ? y[i] + value : value;
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

absl::Status NormRows(const FloatRows& in, const float* gamma, float eps, bool accumulate,
                      const FloatRows& out, cudaStream_t stream) {
  if (IsEmpty(in)) return absl::OkStatus();
  Norm<<<static_cast<unsigned>(in.row_count), kThreads, 0, stream>>>(in, gamma, eps, accumulate,
                                                                     out);
  return LaunchStatus("a norm");
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
