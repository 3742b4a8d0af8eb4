#include "kernels/cpu/step_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace warpline {
namespace {

constexpr int64_t kMaxPosition = int64_t{1} << 40;

}  // namespace

void StepState::Reserve(int64_t max_rows, int64_t max_context) {
  token_ids_.reserve(max_rows);
  positions_.reserve(max_rows);
  sequence_of_row_.reserve(max_rows);
  sequences_.reserve(max_rows);
  pages_.reserve((max_context / kPageTokens + 1) * 2);
}

absl::Status StepState::Check(const StepArgs& args) const {
  if (active_) return absl::InvalidArgumentError("a step is still open");
  int64_t rows = 0;
  for (const StepSequence& sequence : args.sequences) {
    if (sequence.row_count < 0 || sequence.first_position < 0 ||
        sequence.first_position > kMaxPosition) {
      return absl::InvalidArgumentError(absl::StrCat(
          "sequence with ", sequence.row_count, " rows at position ", sequence.first_position));
    }
    if (sequence.kv_slot < 0) {
      return absl::InvalidArgumentError(absl::StrCat("kv_slot ", sequence.kv_slot));
    }
    rows += sequence.row_count;
    const int64_t end = sequence.first_position + sequence.row_count;
    const int64_t covered = static_cast<int64_t>(sequence.pages.size()) * kPageTokens;
    if (sequence.row_count > 0 && covered < end) {
      return absl::InvalidArgumentError(
          absl::StrCat("pages cover ", covered, " positions of a sequence that has ", end));
    }
    for (const int32_t page : sequence.pages) {
      if (page < 0) return absl::InvalidArgumentError(absl::StrCat("page ", page));
    }
  }
  if (rows != static_cast<int64_t>(args.token_ids.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(args.token_ids.size(), " token ids for ", rows, " rows"));
  }
  return absl::OkStatus();
}

absl::Status StepState::Begin(const StepArgs& args) {
  WL_RETURN_IF_ERROR(Check(args));
  token_ids_.assign(args.token_ids.begin(), args.token_ids.end());
  positions_.clear();
  sequence_of_row_.clear();
  sequences_.clear();
  pages_.clear();
  largest_page_ = -1;
  largest_slot_ = -1;
  for (const StepSequence& sequence : args.sequences) {
    const int32_t index = static_cast<int32_t>(sequences_.size());
    sequences_.push_back({.first_row = static_cast<int64_t>(positions_.size()),
                          .row_count = sequence.row_count,
                          .first_position = sequence.first_position,
                          .first_page = static_cast<int64_t>(pages_.size()),
                          .kv_slot = sequence.kv_slot});
    largest_slot_ = std::max(largest_slot_, sequence.kv_slot);
    for (int r = 0; r < sequence.row_count; ++r) {
      positions_.push_back(sequence.first_position + r);
      sequence_of_row_.push_back(index);
    }
    for (const int32_t page : sequence.pages) largest_page_ = std::max(largest_page_, page);
    pages_.insert(pages_.end(), sequence.pages.begin(), sequence.pages.end());
  }
  active_ = true;
  return absl::OkStatus();
}

}  // namespace warpline
