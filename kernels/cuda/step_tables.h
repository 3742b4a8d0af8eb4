// Copies the current step to the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cpu/step_state.h"
#include "kernels/cuda/raii.h"
#include "kernels/cuda/step_view.h"

namespace warpline::cuda {

// Belongs to one device, which must be current. Used by one thread and one stream.
class StepTables {
 public:
  static absl::StatusOr<StepTables> Create();
  // Room for steps of so many rows, whose sequences have so many pages together.
  absl::Status Reserve(int64_t max_rows, int64_t page_count);
  // Enqueues the copy of `step`. Waits until the copy of the step before has been made.
  absl::Status Begin(const StepState& step, bool is_decode, cudaStream_t stream);
  // Of the step that Begin got last.
  const StepView& view() const { return view_; }
  // Lets the step serve others of its shape too, whose contexts are as long at most.
  void RaiseContext(int32_t max_context) { view_.max_context = max_context; }

 private:
  StepTables() = default;
  absl::Status Grow(int64_t bytes);

  StepView view_;
  std::vector<StepSequenceView> sequences_;
  std::vector<int32_t> positions_;
  PinnedBuffer staging_;
  DeviceBuffer tables_;
  Event copied_;
};

}  // namespace warpline::cuda
