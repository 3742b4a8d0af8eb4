#include "kernels/weight_args.h"

#include "absl/strings/str_cat.h"

namespace warpline {
namespace {

constexpr int64_t kMaxWidth = int64_t{1} << 31;

absl::Status Mismatch(absl::string_view what, int64_t got, int64_t wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("a weight has ", what, " ", got, ", not ", wanted));
}

}  // namespace

absl::Status CheckWeightArgs(const WeightArgs& args) {
  const QuantTypeInfo* info = FindQuantType(static_cast<int64_t>(args.type));
  if (info == nullptr || !info->is_weight) {
    return absl::InvalidArgumentError(
        absl::StrCat("type ", static_cast<int>(args.type), " is no weight type"));
  }
  if (args.input_width <= 0 || args.output_width <= 0 || args.expert_count <= 0 ||
      args.input_width > kMaxWidth || args.output_width > kMaxWidth ||
      args.input_width % info->block_values != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a weight of ", args.input_width, " x ",
                                                   args.output_width, " x ", args.expert_count,
                                                   " values of type ", info->name));
  }
  int64_t bytes = RowBytes(args.type, args.input_width);
  if (__builtin_mul_overflow(bytes, args.output_width, &bytes) ||
      __builtin_mul_overflow(bytes, args.expert_count, &bytes) ||
      bytes != static_cast<int64_t>(args.data.size())) {
    return Mismatch("bytes", static_cast<int64_t>(args.data.size()), bytes);
  }
  const int64_t scales = static_cast<int64_t>(args.scales.size());
  if (scales > 1 && scales != args.expert_count)
    return Mismatch("scales", scales, args.expert_count);
  return absl::OkStatus();
}

}  // namespace warpline
