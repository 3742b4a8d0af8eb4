// One expert product of random operands, run by any kernels of a device and compared with plain
// double loops. What the self-check and warpline-parity are made of.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/expert_kernels.h"
#include "kernels/cuda/packed_experts.h"
#include "kernels/cuda/parity_cases.h"
#include "kernels/cuda/raii.h"
#include "kernels/cuda/reference_product.h"

namespace warpline::cuda {

class ProductCheck {
 public:
  // Random weights of `type`, packed on the device as one matrix, and as gate and up where the
  // shape is one. `kernels` must outlive it.
  static absl::StatusOr<std::unique_ptr<ProductCheck>> Create(const ExpertKernels& kernels,
                                                              QuantType type,
                                                              const ParityShape& shape,
                                                              uint64_t seed);

  // Random activations for rows laid out like this, and the reference of the products.
  absl::Status SetRows(const RowLayout& layout, uint64_t seed);

  // What a run puts where: every output byte is kGuardByte before.
  struct Call {
    Op op = Op::kPlain;
    bool y_is_float = false;     // of plain products
    bool has_row_weight = true;  // of plain products
  };
  // Runs the kernels of `set` and compares all outputs. `replay`: captured as a graph, replayed.
  absl::StatusOr<Comparison> Run(const KernelSet& set, const Call& call, bool replay);

  // Whether a row gets the same bits when most rows of its expert, and whole experts, are left out.
  absl::StatusOr<bool> IsBatchInvariant(const KernelSet& set, const Call& call);

  // Whether the packed bytes of the device are those of the host's packer.
  absl::StatusOr<bool> PackedAsOnTheHost() const;

 private:
  ProductCheck(const ExpertKernels& kernels, QuantType type, const ParityShape& shape)
      : kernels_(kernels), type_(type), shape_(shape) {}

  absl::Status CreateWeights(uint64_t seed);
  absl::Status MakeReferences();
  absl::Status PrepareOutput(const Call& call);
  absl::Status Enqueue(const KernelSet& set, const Call& call, const ItemLists& items,
                       const DeviceBuffer& count);
  absl::StatusOr<std::vector<uint8_t>> DownloadOutput() const;
  std::vector<uint8_t> RowBits(const Call& call, const std::vector<uint8_t>& output, int row) const;
  GroupedArgs ArgsOf(const Call& call) const;
  const PackedExperts& WeightsOf(Op op) const {
    return op == Op::kGateUp || op == Op::kFewGateUp ? gate_up_ : plain_;
  }
  int n_ff() const { return shape_.rows / 2; }

  const ExpertKernels& kernels_;
  QuantType type_;
  ParityShape shape_;
  Stream stream_;
  ParityWeights host_weights_;
  float weight_factor_ = 1;  // power of two before rounding to half
  PackedExperts plain_;
  PackedExperts gate_up_;
  DeviceBuffer values_;  // [experts][rows][k] floats
  RowLayout layout_;
  DeviceBuffer start_;
  DeviceBuffer count_;
  DeviceBuffer ids_;
  DeviceBuffer expert_of_row_;
  DeviceBuffer row_weight_;
  DeviceBuffer slot_row_;
  DeviceBuffer x_;         // halves [tokens][k]
  DeviceBuffer x_padded_;  // halves [tokens][padded k], for decode kernels
  DeviceBuffer x_tiles_;
  DeviceBuffer row_scale_;
  DeviceBuffer sums_;  // doubles [rows][shape rows]
  DeviceBuffer h_;     // doubles [rows][n_ff]
  DeviceBuffer output_;
  DeviceBuffer counts_;
};

}  // namespace warpline::cuda
