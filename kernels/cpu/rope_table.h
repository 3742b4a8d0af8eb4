// Cosines and sines of a step's positions, computed once for each kind of rotation and used by all
// layers.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_memory.h"
#include "kernels/cpu/thread_pool.h"

namespace warpline {

// One row of such a table: [2 n_rot] for one position.
void FillRopeRow(const RopeArgs& rope, int64_t position, float* row);

class RopeTables {
 public:
  // Forgets the tables of the step before.
  void BeginStep();
  // [positions.size(), 2 n_rot] f32: cosines of the rotated values, then the sines that their
  // partners are multiplied by (negative for the first of a pair). Interleaved: pairs lie side by
  // side; otherwise n_rot / 2 apart.
  absl::StatusOr<const float*> Get(const RopeArgs& rope, absl::Span<const int64_t> positions,
                                   ThreadPool& pool);

 private:
  struct Table {
    bool valid = false;
    bool interleaved = false;
    double magnitude = 1;
    std::vector<double> inverse_frequency;
    CpuScratch values;
  };
  std::vector<Table> tables_;  // few: a model has one or two kinds
};

}  // namespace warpline
