// The policy `off`: weights decoded to halves in memory, then the vendor's dense product, expert by
// expert. The fallback where no other policy runs, and the A side of comparisons. The host reads
// the items of a step, so a step of it cannot be captured in a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/dense_product.h"
#include "kernels/cuda/grouped_args.h"
#include "kernels/cuda/raii.h"
#include "model/quant.h"

namespace warpline::cuda {

// Rows of one dense product. Every product has this many, whatever is live, so that the library
// always takes the same algorithm and a row's bits do not depend on the rows beside it.
constexpr int kOffRows = 256;
// An item of `off` is all of an expert: all its rows, and all weight rows.
constexpr int kOffItemRows = 1 << 20;

// The largest product that an OffProduct is made for.
struct OffPlan {
  int32_t row_blocks = 0;
  int32_t k = 0;
  int64_t max_items = 0;  // experts that may have rows
};

// The dense products of one device, with their own memory. One thread at a time.
class OffProduct {
 public:
  // For the current device. FailedPrecondition where cuBLAS is not found, ResourceExhausted where
  // the device has no room.
  static absl::StatusOr<std::unique_ptr<OffProduct>> Create(const OffPlan& plan);

  // The product that `args` describes, as the tile kernels compute it: fused (gate and up) or
  // plain; from tiles, or from rows where args.x_rows is set; to h_tiles, h_rows or y. Items are
  // whole experts. Waits until `stream` has made them, the rest is asynchronous.
  // FailedPrecondition inside a capture.
  absl::Status Multiply(QuantType type, bool is_gate_up, const GroupedArgs& args,
                        cudaStream_t stream);

 private:
  OffProduct() = default;
  absl::Status ReadItems(const GroupedArgs& args, cudaStream_t stream);
  absl::Status MultiplyRows(bool is_gate_up, const GroupedArgs& args, int first_row, int rows,
                            cudaStream_t stream);

  OffPlan plan_;
  DenseProduct dense_;
  PinnedBuffer items_;    // the count, padded to an item, then the items
  DeviceBuffer weights_;  // halves [16 * row_blocks][k] of one expert
  DeviceBuffer x_;        // halves [kOffRows][k]
  DeviceBuffer sums_;     // floats [kOffRows][16 * row_blocks]
};

}  // namespace warpline::cuda
