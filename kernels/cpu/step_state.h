// The current step: its rows' tokens and positions and its sequences' pages, copied at BeginStep.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace warpline {

class StepState {
 public:
  struct Sequence {
    int64_t first_row = 0;
    int64_t row_count = 0;
    int64_t first_position = 0;
    int64_t first_page = 0;  // index into pages()
    int kv_slot = 0;
  };

  void Reserve(int64_t max_rows, int64_t max_context);
  // InvalidArgument when rows and ids do not match or a sequence's pages do not cover its
  // positions.
  absl::Status Begin(const StepArgs& args);
  void End() { active_ = false; }

  bool active() const { return active_; }
  int64_t row_count() const { return static_cast<int64_t>(positions_.size()); }
  absl::Span<const int32_t> token_ids() const { return token_ids_; }
  absl::Span<const int64_t> positions() const { return positions_; }
  absl::Span<const int32_t> sequence_of_row() const { return sequence_of_row_; }
  absl::Span<const Sequence> sequences() const { return sequences_; }
  absl::Span<const int32_t> pages() const { return pages_; }  // of all sequences, in their order
  int32_t largest_page() const { return largest_page_; }      // -1: no pages
  int largest_slot() const { return largest_slot_; }          // -1: no sequence
  // The page that holds `position` of a sequence.
  int32_t PageOf(const Sequence& sequence, int64_t position) const {
    return pages_[sequence.first_page + position / kPageTokens];
  }

 private:
  absl::Status Check(const StepArgs& args) const;

  bool active_ = false;
  std::vector<int32_t> token_ids_;
  std::vector<int64_t> positions_;
  std::vector<int32_t> sequence_of_row_;
  std::vector<Sequence> sequences_;
  std::vector<int32_t> pages_;
  int32_t largest_page_ = -1;
  int largest_slot_ = -1;
};

}  // namespace warpline
