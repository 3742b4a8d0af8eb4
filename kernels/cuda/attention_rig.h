// Random sequences with their caches on one device, for checking and timing attention.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/qkv_rope.h"
#include "kernels/cuda/raii.h"
#include "kernels/cuda/rope_table.h"
#include "kernels/cuda/step_view.h"

namespace warpline::cuda {

// What a layer is.
struct AttentionShape {
  KvType kv_type = KvType::kF16;
  int n_head = 0;
  int n_head_kv = 0;
  int head_dim = 0;
  int window = 0;
  bool has_gate = false;
  bool has_norm = false;
  int pairs = 0;  // rotated
  bool is_interleaved = false;
};

// Consecutive rows of one sequence, as a step takes them.
struct SequenceRows {
  int sequence = 0;
  int first_position = 0;
  int row_count = 0;
};

// Sequences of random q, k, v and gate rows, the same numbers for equal (sequence, position), and
// one layer's cache over shuffled pages, all bytes 0xFF at first (NaN for every type).
class AttentionRig {
 public:
  // `contexts`: tokens of each sequence.
  static absl::StatusOr<AttentionRig> Create(const AttentionShape& shape,
                                             const std::vector<int>& contexts);

  // Norms, rotates and stores the rows, and attends where `out` is not null: [rows, n_head *
  // head_dim] afterwards. Waits. Internal when something behind the outputs was written.
  absl::Status Run(const PagedAttention& attention, const std::vector<SequenceRows>& rows,
                   bool is_decode, std::vector<float>* out);

  // One row as projected: [n_head * head_dim], or [n_head_kv * head_dim].
  std::vector<float> Queries(int sequence, int position) const;
  std::vector<float> Keys(int sequence, int position) const;
  std::vector<float> Values(int sequence, int position) const;
  std::vector<float> Gates(int sequence, int position) const;
  // The same after norm and rotation, in double.
  std::vector<double> Turned(std::vector<float> row, const std::vector<float>& gamma,
                             int position) const;
  const std::vector<float>& q_gamma() const { return q_gamma_; }
  const std::vector<float>& k_gamma() const { return k_gamma_; }

  // One stored value, from what ReadCache() has brought here.
  absl::Status ReadCache();
  double Stored(int sequence, int position, int kv_head, bool is_value, int dim) const;

  const AttentionShape& shape() const { return shape_; }
  float scale() const;

 private:
  AttentionRig(const AttentionShape& shape, CudaKvCache cache, RopeTables tables)
      : shape_(shape), cache_(std::move(cache)), tables_(std::move(tables)) {}
  std::vector<float> RandomRow(int kind, int sequence, int position, int width) const;
  absl::Status PlaceStep(const std::vector<SequenceRows>& rows, bool is_decode);

  AttentionShape shape_;
  CudaKvCache cache_;
  RopeTables tables_;
  Stream stream_;
  std::vector<std::vector<int32_t>> pages_;  // of each sequence
  std::vector<float> q_gamma_, k_gamma_;
  std::vector<double> inverse_frequency_;
  DeviceBuffer q_gamma_on_device_, k_gamma_on_device_;
  std::vector<uint8_t> cache_bytes_;

  // The step.
  StepView step_;
  std::vector<StepSequenceView> sequences_;
  std::vector<int32_t> positions_;
  DeviceBuffer sequences_on_device_, positions_on_device_, sequence_of_row_, pages_on_device_;
};

// Copies to new device memory.
template <typename T>
absl::StatusOr<DeviceBuffer> CopyToDevice(const std::vector<T>& values) {
  const size_t bytes = values.size() * sizeof(T);
  WL_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Create(static_cast<int64_t>(bytes)));
  WL_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpy(buffer.as(), values.data(), bytes, cudaMemcpyHostToDevice),
                 "copying operands to the device"));
  return buffer;
}

}  // namespace warpline::cuda
