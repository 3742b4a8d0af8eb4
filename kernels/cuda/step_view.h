// The current step as kernels and their launchers see it: rows, positions and page tables in device
// memory, with host copies of what launches are sized by. Plain structs.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace warpline::cuda {

// One sequence of a step; its rows stand one after another.
struct StepSequenceView {
  int32_t first_row = 0;
  int32_t row_count = 0;
  int32_t first_position = 0;  // row r of the sequence stands at first_position + r
  int32_t first_page = 0;      // index into StepView::pages; they cover all positions
  int32_t page_count = 0;
  int32_t kv_slot = 0;
};

// Valid from BeginStep to EndStep. Pointers are device memory, written before any op of the step.
struct StepView {
  bool is_decode = false;
  int32_t row_count = 0;
  int32_t sequence_count = 0;
  int32_t largest_page = -1;                    // -1: no pages
  int32_t max_context = 0;                      // positions of the longest sequence
  const int32_t* token_ids = nullptr;           // [row_count]
  const int32_t* positions = nullptr;           // [row_count]
  const int32_t* sequence_of_row = nullptr;     // [row_count]
  const StepSequenceView* sequences = nullptr;  // [sequence_count]
  const int32_t* pages = nullptr;               // page ids of all sequences, one after another
  absl::Span<const StepSequenceView> on_host;   // the same sequences
  absl::Span<const int32_t> positions_on_host;  // the same positions
};

}  // namespace warpline::cuda
