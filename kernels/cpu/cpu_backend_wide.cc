// Wide residuals, the n-gram table and the indexer on the CPU: check, then hand to the kernels.
// Scratch as wide as the residual is only kept for some rows at a time.
#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cpu/causal_columns.h"
#include "kernels/cpu/cpu_backend_impl.h"
#include "kernels/cpu/op_checks.h"

namespace warpline {
namespace {

constexpr int64_t kBlockRows = 256;

absl::StatusOr<int64_t> CheckStreams(const CpuRows& wide, int stream_count) {
  if (stream_count >= 1 && wide.width % stream_count == 0) return wide.width / stream_count;
  return absl::InvalidArgumentError(
      absl::StrCat(stream_count, " streams in ", wide.width, " values"));
}

CpuRows Part(const CpuRows& rows, int64_t first, int64_t row_count) {
  CpuRows part = rows;
  part.data += first * rows.stride;
  part.row_count = row_count;
  return part;
}

CpuRows Packed(float* data, int64_t row_count, int64_t width) {
  return {.data = data, .row_count = row_count, .width = width, .stride = width};
}

}  // namespace

absl::StatusOr<HyperJob> CpuBackend::CheckHyperMix(const HyperMixArgs& args) const {
  HyperJob job;
  WL_ASSIGN_OR_RETURN(job.wide, CheckTensor("wide residual", args.wide, -1, -1));
  const int64_t rows = job.wide.row_count;
  const int64_t width = job.wide.width;
  WL_ASSIGN_OR_RETURN(job.n_embd, CheckStreams(job.wide, args.stream_count));
  WL_ASSIGN_OR_RETURN(job.out, CheckTensor("mixed rows", args.out, rows, job.n_embd));
  WL_ASSIGN_OR_RETURN(job.gamma, CheckNeeded("mix gamma", args.gamma, width));
  WL_ASSIGN_OR_RETURN(job.down, CheckMatrix("mix down", args.down, width, -1, 1));
  job.low_rank = job.down.weight->output_width();
  WL_ASSIGN_OR_RETURN(job.up, CheckMatrix("mix up", args.up, job.low_rank, width, 1));
  if (args.inject.weight == nullptr) return job;
  WL_ASSIGN_OR_RETURN(job.inject,
                      CheckMatrix("mix inject", args.inject, width, args.stream_count, 1));
  WL_ASSIGN_OR_RETURN(job.inject_out,
                      CheckTensor("inject", args.inject_out, rows, args.stream_count));
  return job;
}

absl::Status CpuBackend::HyperMix(const HyperMixArgs& args) {
  WL_ASSIGN_OR_RETURN(const HyperJob job, CheckHyperMix(args));
  for (int64_t first = 0; first < job.wide.row_count; first += kBlockRows) {
    const int64_t row_count = std::min(kBlockRows, job.wide.row_count - first);
    WL_RETURN_IF_ERROR(MixRows(args, job, first, row_count));
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::MixRows(const HyperMixArgs& args, const HyperJob& job, int64_t first,
                                 int64_t row_count) {
  const int64_t width = job.wide.width;
  const int64_t n_embd = job.n_embd;
  WL_ASSIGN_OR_RETURN(float* normed_data, wide_normed_.Floats(row_count * width));
  WL_ASSIGN_OR_RETURN(float* gates_data, wide_gates_.Floats(row_count * width));
  WL_ASSIGN_OR_RETURN(float* low_data, wide_low_.Floats(row_count * job.low_rank));
  const CpuRows normed = Packed(normed_data, row_count, width);
  const CpuRows gates = Packed(gates_data, row_count, width);
  const CpuRows low = Packed(low_data, row_count, job.low_rank);
  const CpuRows wide = Part(job.wide, first, row_count);
  const CpuRows out = Part(job.out, first, row_count);
  ForRows(row_count, width, [&](int64_t row) {
    for (int64_t i = 0; i < width; i += n_embd) {
      row_.rms_norm(wide.Row(row) + i, job.gamma + i, args.eps, n_embd, normed.Row(row) + i);
    }
  });
  std::vector<MatrixJob> products = {PlainJob(job.down, normed, low, false)};
  if (job.inject.weight != nullptr) {
    products.push_back(PlainJob(job.inject, normed, Part(job.inject_out, first, row_count), false));
  }
  product_.Run(products);
  ForRows(row_count, job.low_rank, [&](int64_t row) {
    hybrid_.scaled_silu(static_cast<float>(args.stream_count), job.low_rank, low.Row(row));
  });
  product_.Run({PlainJob(job.up, low, gates, false)});
  ForRows(row_count, 4 * width, [&](int64_t row) {
    hybrid_.mix(normed.Row(row), gates.Row(row), args.stream_count, n_embd, out.Row(row));
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::HyperCombine(const HyperCombineArgs& args) {
  WL_ASSIGN_OR_RETURN(const CpuRows wide, CheckTensor("wide residual", args.wide, -1, -1));
  WL_ASSIGN_OR_RETURN(const int64_t n_embd, CheckStreams(wide, args.stream_count));
  WL_ASSIGN_OR_RETURN(const CpuRows y, CheckTensor("layer output", args.y, wide.row_count, n_embd));
  WL_ASSIGN_OR_RETURN(const CpuRows inject,
                      CheckTensor("inject", args.inject, wide.row_count, args.stream_count));
  ForRows(wide.row_count, wide.width, [&](int64_t row) {
    for (int c = 0; c < args.stream_count; ++c) {
      const float share =
          2 * row_.sigmoid(inject.Row(row)[c] / static_cast<float>(args.stream_count));
      row_.add_scaled(y.Row(row), share, /*first=*/false, n_embd, wide.Row(row) + c * n_embd);
    }
  });
  return absl::OkStatus();
}

absl::StatusOr<PleJob> CpuBackend::CheckPle(const PleArgs& args) const {
  WL_RETURN_IF_ERROR(CheckInStep());
  if (args.conv_kernel < 1 || args.conv_kernel > CausalColumns::kMostTaps || args.dilation < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("convolution of ", args.conv_kernel, " dilated by ", args.dilation));
  }
  PleJob job;
  const int64_t rows = step_.row_count();
  WL_ASSIGN_OR_RETURN(job.wide, CheckTensor("wide residual", args.wide, rows, -1));
  const int64_t width = job.wide.width;
  WL_ASSIGN_OR_RETURN(job.n_embd, CheckStreams(job.wide, args.stream_count));
  WL_ASSIGN_OR_RETURN(job.ngrams, CheckTensor("n-gram rows", args.ngrams, rows, job.n_embd));
  WL_ASSIGN_OR_RETURN(job.key, CheckMatrix("n-gram key", args.key, job.n_embd, width, 1));
  WL_ASSIGN_OR_RETURN(job.value,
                      CheckMatrix("n-gram value", args.value, job.n_embd, job.n_embd, 1));
  WL_ASSIGN_OR_RETURN(job.key_gamma, CheckNeeded("n-gram key gamma", args.key_gamma, width));
  WL_ASSIGN_OR_RETURN(job.query_gamma, CheckNeeded("n-gram query gamma", args.query_gamma, width));
  WL_ASSIGN_OR_RETURN(job.conv_gamma, CheckNeeded("n-gram conv gamma", args.conv_gamma, width));
  WL_ASSIGN_OR_RETURN(job.kernel,
                      CheckNeeded("n-gram kernel", args.kernel, args.conv_kernel * width));
  WL_ASSIGN_OR_RETURN(job.columns, CheckState("n-gram columns", args.columns,
                                              int64_t{args.conv_kernel - 1} * args.dilation * width,
                                              step_.largest_slot()));
  return job;
}

absl::Status CpuBackend::Ple(const PleArgs& args) {
  WL_ASSIGN_OR_RETURN(const PleJob job, CheckPle(args));
  for (int64_t first = 0; first < job.wide.row_count; first += kBlockRows) {
    const int64_t row_count = std::min(kBlockRows, job.wide.row_count - first);
    WL_RETURN_IF_ERROR(InjectRows(args, job, first, row_count));
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::InjectRows(const PleArgs& args, const PleJob& job, int64_t first,
                                    int64_t row_count) {
  const int64_t width = job.wide.width;
  const int64_t n_embd = job.n_embd;
  WL_ASSIGN_OR_RETURN(float* normed_data, wide_normed_.Floats(row_count * width));
  WL_ASSIGN_OR_RETURN(float* gated_data, wide_gates_.Floats(row_count * width));
  WL_ASSIGN_OR_RETURN(float* value_data, wide_low_.Floats(row_count * n_embd));
  const CpuRows normed = Packed(normed_data, row_count, width);
  const CpuRows gated = Packed(gated_data, row_count, width);  // keys at first
  const CpuRows value = Packed(value_data, row_count, n_embd);
  const CpuRows wide = Part(job.wide, first, row_count);
  const CpuRows ngrams = Part(job.ngrams, first, row_count);
  product_.Run(
      {PlainJob(job.key, ngrams, gated, false), PlainJob(job.value, ngrams, value, false)});
  ForRows(row_count, 4 * width, [&](int64_t row) {
    for (int64_t i = 0; i < width; i += n_embd) {
      float* const key = gated.Row(row) + i;
      float* const query = normed.Row(row) + i;
      row_.rms_norm(key, job.key_gamma + i, args.eps, n_embd, key);
      row_.rms_norm(wide.Row(row) + i, job.query_gamma + i, args.eps, n_embd, query);
      const float score = hybrid_.dot(key, query, n_embd) / std::sqrt(static_cast<float>(n_embd));
      const float root = std::sqrt(std::max(std::fabs(score), 1e-6f));
      const float share = row_.sigmoid(score == 0 ? 0 : std::copysign(root, score));
      row_.add_scaled(value.Row(row), share, /*first=*/true, n_embd, key);
      row_.rms_norm(key, job.conv_gamma + i, args.eps, n_embd, query);
    }
  });
  // What of the step's sequences lies in these rows.
  std::vector<StepState::Sequence> pieces;
  std::vector<int64_t> piece_of_row(static_cast<size_t>(row_count));
  for (const StepState::Sequence& sequence : step_.sequences()) {
    const int64_t begin = std::max(first, sequence.first_row);
    const int64_t end = std::min(first + row_count, sequence.first_row + sequence.row_count);
    if (begin >= end) continue;
    std::fill_n(piece_of_row.begin() + (begin - first), end - begin,
                static_cast<int64_t>(pieces.size()));
    pieces.push_back(
        {.first_row = begin - first, .row_count = end - begin, .kv_slot = sequence.kv_slot});
  }
  const CausalColumns columns(normed, args.conv_kernel, args.dilation, *job.columns);
  WL_ASSIGN_OR_RETURN(float* conv_data, wide_conv_.Floats(row_count * width));
  const CpuRows conv = Packed(conv_data, row_count, width);
  ForRows(row_count, 4 * width, [&](int64_t row) {
    const float* taps[CausalColumns::kMostTaps];
    columns.Taps(pieces[piece_of_row[row]], row, taps);
    hybrid_.conv(taps, args.conv_kernel, job.kernel, width, width, conv.Row(row));
    row_.add(gated.Row(row), width, wide.Row(row));
    row_.add(conv.Row(row), width, wide.Row(row));
  });
  for (const StepState::Sequence& piece : pieces) columns.Keep(piece);
  return absl::OkStatus();
}

absl::Status CpuBackend::QsaIndexSelect(const QsaIndexSelectArgs& args) {
  WL_RETURN_IF_ERROR(CheckInStep());
  const int64_t rows = step_.row_count();
  if (args.n_head < 1 || args.head_dim < 1 || args.ratio < 1 || args.most_blocks < 1 ||
      2 * args.rope.inverse_frequency.size() > static_cast<size_t>(args.head_dim)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an indexer of ", args.n_head, " heads of size ", args.head_dim,
                     " that chooses ", args.most_blocks, " blocks of ", args.ratio, " and rotates ",
                     2 * args.rope.inverse_frequency.size(), " values"));
  }
  QsaJob job{.n_head = args.n_head,
             .head_dim = args.head_dim,
             .ratio = args.ratio,
             .most_blocks = args.most_blocks,
             .eps = args.eps,
             .rope = args.rope};
  WL_ASSIGN_OR_RETURN(job.q,
                      CheckTensor("indexer q", args.q, rows, int64_t{args.n_head} * args.head_dim));
  WL_ASSIGN_OR_RETURN(job.k, CheckTensor("indexer k", args.k, rows, args.head_dim));
  WL_ASSIGN_OR_RETURN(job.q_gamma, CheckNeeded("indexer q gamma", args.q_gamma, args.head_dim));
  WL_ASSIGN_OR_RETURN(job.k_gamma, CheckNeeded("indexer k gamma", args.k_gamma, args.head_dim));
  WL_ASSIGN_OR_RETURN(job.raw_keys,
                      CheckState("raw keys", args.raw_keys, int64_t{args.ratio - 1} * args.head_dim,
                                 step_.largest_slot()));
  const int64_t page_values = int64_t{PooledKeysOfPage(args.ratio)} * args.head_dim;
  WL_RETURN_IF_ERROR(CheckNeeded("pooled keys", args.pooled_keys,
                                 (int64_t{step_.largest_page()} + 1) * page_values)
                         .status());
  WL_RETURN_IF_ERROR(
      CheckNeeded("selection", args.selection, rows * (1 + args.most_blocks)).status());
  job.pooled_keys = static_cast<CpuBuffer*>(args.pooled_keys)->floats();
  job.selection = reinterpret_cast<int32_t*>(static_cast<CpuBuffer*>(args.selection)->data());
  WL_ASSIGN_OR_RETURN(job.rope_table, rope_tables_.Get(args.rope, step_.positions(), pool_));
  return selector_.Run(job, step_);
}

}  // namespace warpline
