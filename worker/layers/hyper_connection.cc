#include "worker/layers/hyper_connection.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace warpline {

absl::StatusOr<HyperConnection> HyperConnection::Load(WeightLoader& loader, const ModelSpec& spec,
                                                      const std::string& prefix, Inject inject) {
  HyperConnection connection;
  connection.stream_count_ = spec.hyper.stream_count;
  connection.eps_ = static_cast<float>(spec.rms_eps);
  const int64_t wide = spec.residual_width;
  const int64_t rank = spec.hyper.low_rank;
  WL_ASSIGN_OR_RETURN(connection.gamma_,
                      loader.LoadVector(absl::StrCat(prefix, "norm.weight"), wide));
  WL_ASSIGN_OR_RETURN(
      connection.down_,
      loader.LoadMatrix(absl::StrCat(prefix, "down"), {.input_width = wide, .output_width = rank}));
  WL_ASSIGN_OR_RETURN(
      connection.up_,
      loader.LoadMatrix(absl::StrCat(prefix, "up"), {.input_width = rank, .output_width = wide}));
  if (inject == Inject::kYes) {
    WL_ASSIGN_OR_RETURN(
        connection.inject_,
        loader.LoadMatrix(absl::StrCat(prefix, "inject"),
                          {.input_width = wide, .output_width = spec.hyper.stream_count}));
  }
  return connection;
}

Tensor HyperConnection::InjectRows(const LayerContext& context, int64_t row_count) const {
  return PackedRows(context.workspace.inject.get(), row_count, stream_count_);
}

absl::Status HyperConnection::Mix(const LayerContext& context, const Tensor& wide,
                                  const Tensor& out) const {
  return context.backend.HyperMix({.wide = wide,
                                   .stream_count = stream_count_,
                                   .gamma = gamma_.get(),
                                   .down = down_.linear(),
                                   .up = up_.linear(),
                                   .inject = inject_.linear(),
                                   .eps = eps_,
                                   .out = out,
                                   .inject_out = InjectRows(context, wide.row_count)});
}

absl::Status HyperConnection::Combine(const LayerContext& context, const Tensor& wide,
                                      const Tensor& y) const {
  return context.backend.HyperCombine({.wide = wide,
                                       .y = y,
                                       .inject = InjectRows(context, wide.row_count),
                                       .stream_count = stream_count_});
}

}  // namespace warpline
