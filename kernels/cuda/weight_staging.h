// Brings weights to the device while a model loads: threads copy them into pinned memory piece by
// piece, the device fetches the pieces meanwhile, and the memory of packed blocks serves again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/raii.h"

namespace warpline::cuda {

// Belongs to one device, which must be current. Used by one thread and one stream, whose order is
// what makes memory safe to use again.
class WeightStaging {
 public:
  explicit WeightStaging(int device) : device_(device) {}

  // Device memory of this size, perhaps some that was given back; its old contents may still be
  // read by work that is on the stream.
  absl::StatusOr<DeviceBuffer> Take(int64_t bytes);
  // Keeps the memory for the next weight of its size, if the model is still loading.
  void Give(DeviceBuffer buffer);

  // Enqueues the copy of `bytes`, which are free again when the call returns.
  absl::Status Copy(absl::Span<const uint8_t> bytes, uint8_t* to, cudaStream_t stream);

  // The model is loaded: gives all memory back. Another one may be loaded later.
  void Finish();

 private:
  // A part of the pinned memory, and when the device has fetched what was in it.
  struct Slot {
    uint8_t* memory = nullptr;
    Event fetched;
  };
  struct CopyJob;

  absl::Status Open();
  absl::Status CopyPieces(CopyJob& job, Slot* slots) const;

  const int device_;
  PinnedBuffer pinned_;
  std::vector<Slot> slots_;         // kSlotsOfThread for each copying thread; empty: not loading
  std::vector<DeviceBuffer> free_;  // given back
};

}  // namespace warpline::cuda
