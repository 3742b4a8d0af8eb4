// The columns that a causal convolution reads: rows of the step, and before those what the slots
// kept of earlier steps.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/cpu_memory.h"
#include "kernels/cpu/op_checks.h"
#include "kernels/cpu/step_state.h"

namespace warpline {

// Borrows everything; for one op.
class CausalColumns {
 public:
  static constexpr int kMostTaps = 16;

  // `state` keeps (taps - 1) * dilation columns for each slot, oldest first.
  CausalColumns(const CpuRows& rows, int taps, int dilation, const CpuSlotState& state)
      : rows_(rows), taps_(taps), dilation_(dilation), state_(state) {}

  // The columns of all taps for one row of a sequence, oldest first.
  void Taps(const StepState::Sequence& sequence, int64_t row, const float** taps) const {
    for (int j = 0; j < taps_; ++j) {
      const int64_t back = int64_t{taps_ - 1 - j} * dilation_;
      taps[j] = Column(sequence, row - sequence.first_row - back);
    }
  }

  // The slot keeps the last columns of this sequence; after its rows have been read.
  void Keep(const StepState::Sequence& sequence) const {
    float* const kept = state_.Slot(sequence.kv_slot);
    const int64_t bytes = rows_.width * static_cast<int64_t>(sizeof(float));
    // Ascending, so a kept column is read before it is overwritten.
    for (int64_t j = 0; j < history(); ++j) {
      const float* const from = Column(sequence, sequence.row_count - history() + j);
      if (from != kept + j * rows_.width) std::memcpy(kept + j * rows_.width, from, bytes);
    }
  }

 private:
  int64_t history() const { return int64_t{taps_ - 1} * dilation_; }
  // `index` counts from the sequence's first row in this step; below 0 lies what the slot kept.
  const float* Column(const StepState::Sequence& sequence, int64_t index) const {
    if (index >= 0) return rows_.Row(sequence.first_row + index);
    return state_.Slot(sequence.kv_slot) + (history() + index) * rows_.width;
  }

  const CpuRows rows_;
  const int taps_;
  const int dilation_;
  const CpuSlotState& state_;
};

}  // namespace warpline
