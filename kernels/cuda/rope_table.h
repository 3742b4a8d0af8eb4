// Cosines and sines of a step's positions, computed once for each kind of rotation and used by all
// layers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/raii.h"
#include "kernels/cuda/step_view.h"

namespace warpline::cuda {

// Belongs to one device, which must be current. Used by one thread and one stream.
class RopeTables {
 public:
  // For steps of up to `max_rows` rows.
  explicit RopeTables(int64_t max_rows) : max_rows_(max_rows) {}

  // Forgets the tables of the step before.
  void BeginStep();
  // [rows, pairs] {cosine, sine} of position * inverse_frequency, times the magnitude; angles in
  // double. The first call of a step enqueues the computation on `stream`. The first call for a
  // kind of rotation allocates, so it must not be made while `stream` is recorded.
  // InvalidArgument for more than kMaxHeadDim / 2 pairs or more than max_rows rows.
  absl::StatusOr<const float2*> Get(const RopeArgs& rope, const StepView& step,
                                    cudaStream_t stream);

 private:
  struct Table {
    bool valid = false;
    double magnitude = 1;
    std::vector<double> inverse_frequency;
    DeviceBuffer values;
  };
  int64_t max_rows_;
  std::vector<Table> tables_;  // few: a model has one or two kinds
};

}  // namespace warpline::cuda
