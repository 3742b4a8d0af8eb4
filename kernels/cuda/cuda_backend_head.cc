// The end of a model on the CUDA back end: logits, and the candidates for the next tokens. These
// run behind a step and are not recorded.
#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_backend_impl.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/find_candidates.h"

namespace warpline::cuda {
namespace {

bool AreNeighbours(absl::Span<const int32_t> rows) {
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i] != rows[i - 1] + 1) return false;
  }
  return true;
}

}  // namespace

absl::Status CudaBackend::Head(const HeadArgs& args) {
  WL_ASSIGN_OR_RETURN(const FloatRows in, CheckRows("head input", args.in, -1, -1));
  const int64_t count = static_cast<int64_t>(args.rows.size());
  WL_ASSIGN_OR_RETURN(const FloatRows out, CheckRows("logits", args.out, count, -1));
  WL_ASSIGN_OR_RETURN(const CheckedMatrix matrix,
                      CheckMatrix("head matrix", args.matrix, in.width, out.width, 1));
  for (const int32_t row : args.rows) {
    if (row < 0 || row >= in.row_count) {
      return absl::InvalidArgumentError(absl::StrCat("head row ", row, " of ", in.row_count));
    }
  }
  if (count == 0) return absl::OkStatus();
  WL_RETURN_IF_ERROR(RunDeferred());
  products_->ForgetInput();
  // The rows of a decode step, and the last row of a prompt, need not be moved.
  FloatRows chosen{in.data + args.rows[0] * in.stride, count, in.width, in.stride};
  if (!AreNeighbours(args.rows)) {
    chosen.stride = in.width;
    WL_ASSIGN_OR_RETURN(chosen.data, head_rows_.Get<float>(MostRows(count) * in.width));
    WL_RETURN_IF_ERROR(ChooseRows(in, args.rows, chosen, stream_.get()));
  }
  return products_->Run({.weight = matrix.weight,
                         .bias = matrix.bias,
                         .in = chosen,
                         .out = out,
                         .soft_cap = args.soft_cap,
                         .is_decode = is_decode_},
                        stream_.get());
}

absl::Status CudaBackend::TopCandidates(const TopCandidatesArgs& args) {
  WL_ASSIGN_OR_RETURN(const FloatRows logits, CheckRows("logits", args.logits, -1, -1));
  WL_RETURN_IF_ERROR(CheckQueries(args));
  WL_RETURN_IF_ERROR(RunDeferred());
  products_->ForgetInput();
  WL_RETURN_IF_ERROR(candidates_.Run(logits, args.queries, args.out, stream_.get()));
  return CheckExpertIds();
}

}  // namespace warpline::cuda
