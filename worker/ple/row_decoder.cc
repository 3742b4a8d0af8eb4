#include "worker/ple/row_decoder.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace warpline {

absl::StatusOr<RowDecoder> RowDecoder::Create(const NgramTable& table) {
  WL_ASSIGN_OR_RETURN(const InstructionSet set, DetectInstructionSet(""));
  return RowDecoder(table, FastDequantizer(table.type, set));
}

absl::Status RowDecoder::Check(absl::Span<const int64_t> rows, absl::Span<float> out) const {
  if (out.size() != rows.size() * row_width_) {
    return absl::InvalidArgumentError(absl::StrCat(rows.size(), " n-gram rows of ", row_width_,
                                                   " values do not make ", out.size()));
  }
  for (const int64_t row : rows) {
    if (row >= 0 && row < row_count_) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("row ", row, " of an n-gram table of ", row_count_));
  }
  return absl::OkStatus();
}

}  // namespace warpline
