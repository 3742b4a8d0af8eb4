#include <cuda_fp16.h>

#include <algorithm>
#include <cstring>

#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/reference_product.h"

namespace warpline::cuda {
namespace {

constexpr int kRows = 8;      // of a block: a group of 8 rows belongs to one expert
constexpr int kColumns = 32;  // of a block
constexpr int kStepK = 32;

__device__ float FloatOfHalf(uint16_t half) { return __half2float(__ushort_as_half(half)); }

__global__ void ReferenceKernel(const ReferenceArgs args) {
  __shared__ double x_tile[kRows][kStepK];
  __shared__ double w_tile[kColumns][kStepK + 1];
  const int row = static_cast<int>(blockIdx.y) * kRows + static_cast<int>(threadIdx.y);
  const int column = static_cast<int>(blockIdx.x) * kColumns + static_cast<int>(threadIdx.x);
  int expert = -1;
  for (int r = 0; r < kRows; ++r) {
    const int other = static_cast<int>(blockIdx.y) * kRows + r;
    if (other < args.rows) expert = max(expert, args.expert_of_row[other]);
  }
  if (expert < 0) return;
  const bool is_live = row < args.rows && args.expert_of_row[row] >= 0;
  const uint16_t* const x =
      is_live ? args.x + static_cast<int64_t>(args.ids[row]) * args.k : nullptr;
  const float* const w = args.weights + static_cast<int64_t>(expert) * args.columns * args.k;
  double sum = 0;
  for (int k0 = 0; k0 < args.k; k0 += kStepK) {
    const int k = k0 + static_cast<int>(threadIdx.x);
    x_tile[threadIdx.y][threadIdx.x] =
        is_live && k < args.k ? static_cast<double>(FloatOfHalf(x[k])) : 0;
    for (int c = static_cast<int>(threadIdx.y); c < kColumns; c += kRows) {
      const int64_t from = static_cast<int64_t>(blockIdx.x) * kColumns + c;
      const float value = from < args.columns && k < args.k ? w[from * args.k + k] : 0;
      w_tile[c][threadIdx.x] =
          static_cast<double>(__half2float(__float2half_rn(value * args.weight_factor)));
    }
    __syncthreads();
    for (int i = 0; i < kStepK; ++i) sum += x_tile[threadIdx.y][i] * w_tile[threadIdx.x][i];
    __syncthreads();
  }
  if (is_live && column < args.columns) {
    args.sums[static_cast<int64_t>(row) * args.columns + column] = sum / args.weight_factor;
  }
}

__global__ void SwigluKernel(const double* gate_up, int rows, int n_ff, double* h) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= static_cast<int64_t>(rows) * n_ff) return;
  const int64_t row = i / n_ff;
  const double gate = gate_up[row * 2 * n_ff + i % n_ff];
  const double up = gate_up[row * 2 * n_ff + n_ff + i % n_ff];
  h[i] = gate / (1 + exp(-gate)) * up;
}

// One output as its bits and its value.
struct Output {
  uint32_t bits;
  float value;
  bool is_guard;  // all bytes are kGuardByte
};

__device__ Output ReadOutput(const CompareArgs& args, int row, int column) {
  const int64_t place = static_cast<int64_t>(row) * args.output_columns + column;
  if (args.kind == OutputKind::kFloatRows) {
    const float value = static_cast<const float*>(args.output)[place];
    const uint32_t bits = __float_as_uint(value);
    return {bits, value, bits == 0xFFFFFFFFu};
  }
  const uint8_t* const bytes = static_cast<const uint8_t*>(args.output);
  const int64_t offset =
      args.kind == OutputKind::kHalfRows ? place * 2 : TileOffset(row, column, args.row_groups);
  const uint16_t half = *reinterpret_cast<const uint16_t*>(bytes + offset);
  return {half, FloatOfHalf(half), half == 0xFFFF};
}

__device__ void RaiseMaximum(uint64_t* maximum, double value) {
  atomicMax(reinterpret_cast<unsigned long long*>(maximum),
            static_cast<unsigned long long>(__double_as_longlong(fmax(value, 0.0))));
}

__device__ uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// One block a row. Threads keep maxima of their own and publish them once.
__global__ void CompareKernel(const CompareArgs args, CompareCounts* counts) {
  const int row = static_cast<int>(blockIdx.x);
  const bool is_live = args.expert_of_row[row] >= 0;
  const double factor =
      args.factor * (args.row_weight != nullptr ? static_cast<double>(args.row_weight[row]) : 1);
  const double relative = args.kind == OutputKind::kFloatRows ? 0 : 0x1p-11;
  double max_reference = 0;
  double max_error = 0;
  double max_excess = 0;
  uint64_t hash = 0;
  uint32_t not_finite = 0;
  uint32_t touched = 0;
  for (int column = static_cast<int>(threadIdx.x); column < args.output_columns;
       column += static_cast<int>(blockDim.x)) {
    const Output output = ReadOutput(args, row, column);
    if (!is_live) {
      touched += output.is_guard ? 0 : 1;
      continue;
    }
    const double reference =
        column < args.columns
            ? args.reference[static_cast<int64_t>(row) * args.columns + column] * factor
            : 0;
    not_finite += isfinite(output.value) ? 0 : 1;
    const double error = fabs(static_cast<double>(output.value) - reference);
    max_reference = fmax(max_reference, fabs(reference));
    max_error = fmax(max_error, error);
    max_excess = fmax(max_excess, error - relative * fabs(reference));
    const uint64_t place = static_cast<uint64_t>(row) * args.output_columns + column;
    hash += Mix(place * 0x9E3779B97F4A7C15ull + output.bits);
  }
  RaiseMaximum(&counts->max_reference, max_reference);
  RaiseMaximum(&counts->max_error, max_error);
  RaiseMaximum(&counts->max_excess, max_excess);
  atomicAdd(reinterpret_cast<unsigned long long*>(&counts->hash), hash);
  if (not_finite > 0) atomicAdd(&counts->not_finite, not_finite);
  if (touched > 0) atomicAdd(&counts->touched, touched);
}

double DoubleOf(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

absl::Status ReferenceProduct(const ReferenceArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return absl::OkStatus();
  const dim3 grid(static_cast<unsigned>(RoundUp(args.columns, kColumns) / kColumns),
                  static_cast<unsigned>(RoundUp(args.rows, kRows) / kRows));
  ReferenceKernel<<<grid, dim3(kColumns, kRows), 0, stream>>>(args);
  return LaunchStatus("the reference product");
}

absl::Status ReferenceSwiglu(const double* gate_up, int rows, int n_ff, double* h,
                             cudaStream_t stream) {
  const int64_t count = static_cast<int64_t>(rows) * n_ff;
  if (count == 0) return absl::OkStatus();
  SwigluKernel<<<static_cast<unsigned>(RoundUp(count, 256) / 256), 256, 0, stream>>>(gate_up, rows,
                                                                                     n_ff, h);
  return LaunchStatus("the reference SwiGLU");
}

absl::StatusOr<Comparison> Compare(const CompareArgs& args, const DeviceBuffer& counts,
                                   cudaStream_t stream) {
  CompareCounts result;
  WL_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(counts.as(), 0, sizeof(result), stream), "clearing a comparison"));
  if (args.rows > 0) {
    CompareKernel<<<static_cast<unsigned>(args.rows), 256, 0, stream>>>(args,
                                                                        counts.as<CompareCounts>());
    WL_RETURN_IF_ERROR(LaunchStatus("comparing outputs"));
  }
  WL_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(&result, counts.as(), sizeof(result), cudaMemcpyDeviceToHost, stream),
      "reading a comparison"));
  WL_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), "comparing outputs"));
  return Comparison{.max_reference = DoubleOf(result.max_reference),
                    .max_error = DoubleOf(result.max_error),
                    .max_excess = DoubleOf(result.max_excess),
                    .hash = result.hash,
                    .not_finite = result.not_finite,
                    .touched = result.touched};
}

}  // namespace warpline::cuda
