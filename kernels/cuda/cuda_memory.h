// What the CUDA back end allocates: buffers, weights and what is kept for each slot.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "kernels/backend.h"
#include "kernels/cuda/expert_product.h"
#include "kernels/cuda/packed_experts.h"
#include "kernels/cuda/raii.h"
#include "kernels/cuda/weight_staging.h"
#include "kernels/quant_decode_common.h"

namespace warpline::cuda {

// Device memory that only grows; what it held is lost when it does.
class Scratch {
 public:
  // At least `bytes`; waits for the device where it has to grow.
  absl::Status Reserve(int64_t bytes);
  int64_t bytes() const { return buffer_.bytes(); }
  template <typename T>
  T* as() const {
    return buffer_.as<T>();
  }
  template <typename T>
  absl::StatusOr<T*> Get(int64_t count) {
    WL_RETURN_IF_ERROR(Reserve(count * static_cast<int64_t>(sizeof(T))));
    return buffer_.as<T>();
  }

 private:
  DeviceBuffer buffer_;
};

class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(DeviceBuffer memory, int64_t byte_count)
      : memory_(std::move(memory)), byte_count_(byte_count) {}
  int64_t byte_count() const override { return byte_count_; }
  uint8_t* data() const { return memory_.as(); }
  float* floats() const { return memory_.as<float>(); }
  int64_t float_count() const { return byte_count_ / static_cast<int64_t>(sizeof(float)); }

 private:
  DeviceBuffer memory_;
  int64_t byte_count_;
};

class CudaSlotState final : public SlotState {
 public:
  // All zero.
  static absl::StatusOr<std::unique_ptr<CudaSlotState>> Create(const SlotStateArgs& args,
                                                               cudaStream_t stream);
  absl::Status Reset(int kv_slot) override;
  const SlotStateArgs& args() const { return args_; }
  float* values() const { return memory_.as<float>(); }  // [slot_count, value_count]

 private:
  CudaSlotState(const SlotStateArgs& args, DeviceBuffer memory, cudaStream_t stream)
      : args_(args), memory_(std::move(memory)), stream_(stream) {}
  SlotStateArgs args_;
  DeviceBuffer memory_;
  cudaStream_t stream_;
};

// A matrix, or the matrices of all experts. It arrives as the file's blocks; how it lies in memory
// afterwards follows from the op that uses it first: packed for the tiles, as floats for routers,
// as blocks for embeddings. The blocks are given back once nothing needs them. Used by the back
// end's thread and stream alone.
class CudaWeight final : public Weight {
 public:
  // Copies `args`, which has been checked, to the current device. `staging` must outlive it.
  static absl::StatusOr<std::unique_ptr<CudaWeight>> Create(const WeightArgs& args,
                                                            WeightStaging& staging,
                                                            cudaStream_t stream);

  QuantType type() const override { return type_; }
  int64_t input_width() const override { return input_width_; }
  int64_t output_width() const override { return output_width_; }
  int64_t expert_count() const override { return expert_count_; }

  bool has_expert_scales() const { return expert_count_ > 1 && !scales_.empty(); }
  // Of a plain matrix.
  float scale() const { return scales_.empty() || expert_count_ > 1 ? 1 : scales_[0]; }
  // [expert_count] on the device; null when there are none.
  const float* scales_on_device() const { return device_scales_.as<float>(); }
  int64_t row_bytes() const { return RowBytes(type_, input_width_); }

  // The file's blocks, from now on kept. Internal when they have been given back.
  absl::StatusOr<const uint8_t*> Blocks() const;
  // The file's blocks for an arrangement that replaces them; call Release() after it.
  absl::StatusOr<const uint8_t*> BlocksOnce() const;
  void Release() const;

  // Values as floats, [expert_count][output_width][input_width].
  absl::StatusOr<const float*> Floats(const QuantGrids& grids, cudaStream_t stream) const;
  // A plain matrix, packed. The first call enqueues the packing on `stream`.
  absl::StatusOr<const PackedExperts*> Packed(const QuantGrids& grids, cudaStream_t stream) const;
  bool is_packed() const { return packed_.has_value(); }

  // Of the down matrix of an expert layer: the layer as a whole, packed.
  std::unique_ptr<ExpertWeights>& expert_layer() const { return expert_layer_; }

 private:
  explicit CudaWeight(WeightStaging& staging) : staging_(staging) {}

  WeightStaging& staging_;
  QuantType type_ = QuantType::kF32;
  int64_t input_width_ = 0;
  int64_t output_width_ = 0;
  int64_t expert_count_ = 1;
  std::vector<float> scales_;
  DeviceBuffer device_scales_;
  mutable DeviceBuffer blocks_;
  mutable bool keep_blocks_ = false;
  mutable DeviceBuffer floats_;
  mutable absl::optional<PackedExperts> packed_;
  mutable std::unique_ptr<ExpertWeights> expert_layer_;
};

}  // namespace warpline::cuda
