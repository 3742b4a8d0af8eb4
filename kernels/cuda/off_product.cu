#include "kernels/cuda/off_product.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/dequantize.h"
#include "kernels/cuda/mma_ops.cuh"

namespace warpline::cuda {
namespace {

constexpr int kThreads = 256;

unsigned BlocksFor(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

// `rows` rows from `first_row` on in natural order, zeros up to kOffRows. A thread writes eight
// values: from tiles, a pair of each 16-byte piece of their group.
__global__ void __launch_bounds__(kThreads)
    GatherRows(const __grid_constant__ GroupedArgs args, int first_row, int rows, uint16_t* x) {
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int chunks = args.k / 8;
  const int index = thread / chunks;
  const int k = thread % chunks * 8;
  if (index >= kOffRows) return;
  uint4 value = make_uint4(0, 0, 0, 0);
  if (index < rows) {
    const int64_t row = first_row + index;
    if (args.x_rows != nullptr) {
      const int64_t source = args.ids != nullptr ? args.ids[row] : row;
      value = *reinterpret_cast<const uint4*>(args.x_rows + source * args.k + k);
    } else {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pairs[i] = *reinterpret_cast<const uint32_t*>(
            args.x_tiles + TileOffset(row, k + 2 * i, args.x_row_groups));
      }
      value = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
  *reinterpret_cast<uint4*>(x + static_cast<int64_t>(index) * args.k + k) = value;
}

// Sums to y, eight columns a thread.
__global__ void __launch_bounds__(kThreads)
    StorePlainRows(const __grid_constant__ GroupedArgs args, int first_row, int rows,
                   const float* sums) {
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int columns = args.row_blocks * kRowBlock;
  const int index = thread / (columns / 8);
  const int column = thread % (columns / 8) * 8;
  if (index >= rows) return;
  StoreOutputs(args, first_row + index, column,
               sums + static_cast<int64_t>(index) * columns + column);
}

// Gate and up to h, a pair of columns a thread.
__global__ void __launch_bounds__(kThreads)
    StoreGatedRows(const __grid_constant__ GroupedArgs args, int first_row, int rows,
                   const float* sums) {
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int columns = args.row_blocks * (kRowBlock / 2);
  const int index = thread / (columns / 2);
  const int column = thread % (columns / 2) * 2;
  if (index >= rows) return;
  const int row = first_row + index;
  const float scale = SumScale(args, row);
  const float* const gate = sums + static_cast<int64_t>(index) * 2 * columns + column;
  const float* const up = gate + columns;
  const uint32_t pair = PackFloats(GatedOutput(args, gate[0] * scale, up[0] * scale, row),
                                   GatedOutput(args, gate[1] * scale, up[1] * scale, row));
  if (args.h_rows != nullptr) {
    *reinterpret_cast<uint32_t*>(args.h_rows + static_cast<int64_t>(row) * columns + column) = pair;
  } else {
    *reinterpret_cast<uint32_t*>(args.h_tiles + TileOffset(row, column, args.h_row_groups)) = pair;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<OffProduct>> OffProduct::Create(const OffPlan& plan) {
  std::unique_ptr<OffProduct> product(new OffProduct);
  product->plan_ = plan;
  WL_RETURN_IF_ERROR(product->dense_.Open());
  const int64_t columns = int64_t{plan.row_blocks} * kRowBlock;
  const int64_t item_bytes = (plan.max_items + 1) * static_cast<int64_t>(sizeof(TileItem));
  WL_ASSIGN_OR_RETURN(product->items_, PinnedBuffer::Create(item_bytes));
  WL_ASSIGN_OR_RETURN(product->weights_, DeviceBuffer::Create(2 * columns * plan.k));
  WL_ASSIGN_OR_RETURN(product->x_, DeviceBuffer::Create(int64_t{2} * kOffRows * plan.k));
  WL_ASSIGN_OR_RETURN(product->sums_, DeviceBuffer::Create(4 * kOffRows * columns));
  return product;
}

absl::Status OffProduct::ReadItems(const GroupedArgs& args, cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  WL_RETURN_IF_ERROR(CudaStatus(cudaStreamIsCapturing(stream, &capture), "asking for a capture"));
  if (capture != cudaStreamCaptureStatusNone) {
    return absl::FailedPreconditionError("products of policy off cannot be captured in a graph");
  }
  const auto bytes = static_cast<size_t>(plan_.max_items) * sizeof(TileItem);
  WL_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(items_.as(), args.item_count, sizeof(int32_t),
                                                cudaMemcpyDeviceToHost, stream),
                                "reading the number of experts"));
  WL_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(items_.as<TileItem>() + 1, args.items, bytes, cudaMemcpyDeviceToHost, stream),
      "reading the rows of experts"));
  return CudaStatus(cudaStreamSynchronize(stream), "waiting for the rows of experts");
}

absl::Status OffProduct::Multiply(QuantType type, bool is_gate_up, const GroupedArgs& args,
                                  cudaStream_t stream) {
  if (args.row_blocks > plan_.row_blocks || args.k > plan_.k) {
    return absl::InvalidArgumentError(absl::StrCat("a product of ", args.row_blocks,
                                                   " row blocks of ", args.k,
                                                   " values is larger than planned"));
  }
  WL_RETURN_IF_ERROR(ReadItems(args, stream));
  const int32_t count = *items_.as<int32_t>();
  if (count < 0 || count > plan_.max_items) return absl::InternalError("more experts than planned");
  const TileItem* const items = items_.as<TileItem>() + 1;
  for (const TileItem* item = items; item < items + count; ++item) {
    WL_RETURN_IF_ERROR(Dequantize({.type = type,
                                   .packed = args.weights + item->expert * args.expert_bytes,
                                   .table = args.table,
                                   .row_blocks = args.row_blocks,
                                   .k = args.k,
                                   .is_gate_up = is_gate_up,
                                   .out = weights_.as<uint16_t>()},
                                  stream));
    for (int row = 0; row < item->rows; row += kOffRows) {
      WL_RETURN_IF_ERROR(MultiplyRows(is_gate_up, args, item->first_row + row,
                                      std::min(kOffRows, item->rows - row), stream));
    }
  }
  return absl::OkStatus();
}

absl::Status OffProduct::MultiplyRows(bool is_gate_up, const GroupedArgs& args, int first_row,
                                      int rows, cudaStream_t stream) {
  const int columns = args.row_blocks * kRowBlock;
  GatherRows<<<BlocksFor(int64_t{kOffRows} * args.k / 8), kThreads, 0, stream>>>(
      args, first_row, rows, x_.as<uint16_t>());
  WL_RETURN_IF_ERROR(LaunchStatus("gathering rows"));
  WL_RETURN_IF_ERROR(dense_.Multiply({.weights = weights_.as<uint16_t>(),
                                      .x = x_.as<uint16_t>(),
                                      .y = sums_.as<float>(),
                                      .y_is_float = true,
                                      .m = columns,
                                      .rows = kOffRows,
                                      .k = args.k},
                                     stream));
  if (is_gate_up) {
    StoreGatedRows<<<BlocksFor(int64_t{rows} * columns / 4), kThreads, 0, stream>>>(
        args, first_row, rows, sums_.as<float>());
  } else {
    StorePlainRows<<<BlocksFor(int64_t{rows} * columns / 8), kThreads, 0, stream>>>(
        args, first_row, rows, sums_.as<float>());
  }
  return LaunchStatus("storing rows");
}

}  // namespace warpline::cuda
