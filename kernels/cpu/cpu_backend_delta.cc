// Gated DeltaNet on the CPU: check, then hand to the kernels. Threads share out rows before the
// recurrence and after it, and heads and value dims in it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cpu/causal_columns.h"
#include "kernels/cpu/cpu_backend_impl.h"
#include "kernels/cpu/op_checks.h"

namespace warpline {
namespace {

absl::Status CheckDeltaHeads(int n_head_key, int n_head_value, int head_dim) {
  if (n_head_key > 0 && n_head_value > 0 && n_head_value % n_head_key == 0 && head_dim > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a DeltaNet of ", n_head_value, " heads over ",
                                                 n_head_key, " of size ", head_dim));
}

double Softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

}  // namespace

absl::Status CpuBackend::DeltaPrep(const DeltaPrepArgs& args) {
  WL_RETURN_IF_ERROR(CheckInStep());
  WL_RETURN_IF_ERROR(CheckDeltaHeads(args.n_head_key, args.n_head_value, args.head_dim));
  const int64_t rows = step_.row_count();
  const int64_t key_width = int64_t{args.n_head_key} * args.head_dim;
  const int64_t width = 2 * key_width + int64_t{args.n_head_value} * args.head_dim;
  const int64_t heads = args.n_head_value;
  if (args.conv_kernel < 1 || args.conv_kernel > CausalColumns::kMostTaps) {
    return absl::InvalidArgumentError(absl::StrCat("convolution of ", args.conv_kernel));
  }
  WL_ASSIGN_OR_RETURN(const CpuRows in, CheckTensor("delta qkv", args.qkv, rows, width));
  WL_ASSIGN_OR_RETURN(const CpuRows out, CheckTensor("delta output", args.out, rows, width));
  WL_ASSIGN_OR_RETURN(const CpuRows beta, CheckTensor("delta beta", args.beta, rows, heads));
  WL_ASSIGN_OR_RETURN(const CpuRows alpha, CheckTensor("delta alpha", args.alpha, rows, heads));
  WL_ASSIGN_OR_RETURN(const float* kernel,
                      CheckNeeded("delta kernel", args.kernel, args.conv_kernel * width));
  WL_ASSIGN_OR_RETURN(const float* a, CheckNeeded("delta a", args.a, heads));
  WL_ASSIGN_OR_RETURN(const float* dt, CheckNeeded("delta dt", args.dt, heads));
  WL_ASSIGN_OR_RETURN(CpuSlotState * state,
                      CheckState("convolution columns", args.columns,
                                 (args.conv_kernel - 1) * width, step_.largest_slot()));
  const float query_factor = static_cast<float>(1 / std::sqrt(static_cast<double>(args.head_dim)));
  const CausalColumns columns(in, args.conv_kernel, /*dilation=*/1, *state);
  ForRows(rows, width * args.conv_kernel, [&](int64_t row) {
    const float* taps[CausalColumns::kMostTaps];
    columns.Taps(step_.sequences()[step_.sequence_of_row()[row]], row, taps);
    float* const made = out.Row(row);
    hybrid_.conv(taps, args.conv_kernel, kernel, width, width, made);
    for (int64_t i = 0; i < key_width; i += args.head_dim) {
      hybrid_.unit_norm(args.eps, query_factor, args.head_dim, made + i);
      hybrid_.unit_norm(args.eps, 1, args.head_dim, made + key_width + i);
    }
    for (int64_t h = 0; h < heads; ++h) {
      float* const decay = alpha.Row(row) + h;
      *decay = static_cast<float>(std::exp(a[h] * Softplus(double{*decay} + dt[h])));
      beta.Row(row)[h] = row_.sigmoid(beta.Row(row)[h]);
    }
  });
  pool_.Run(static_cast<int64_t>(step_.sequences().size()),
            [&](int64_t index, int) { columns.Keep(step_.sequences()[index]); });
  return absl::OkStatus();
}

absl::Status CpuBackend::DeltaRun(const DeltaRunArgs& args) {
  WL_RETURN_IF_ERROR(CheckInStep());
  WL_RETURN_IF_ERROR(CheckDeltaHeads(args.n_head_key, args.n_head_value, args.head_dim));
  const int64_t rows = step_.row_count();
  const int64_t dim = args.head_dim;
  const int64_t heads = args.n_head_value;
  const int64_t key_width = args.n_head_key * dim;
  const int64_t width = heads * dim;
  WL_ASSIGN_OR_RETURN(const CpuRows qkv,
                      CheckTensor("delta qkv", args.qkv, rows, 2 * key_width + width));
  WL_ASSIGN_OR_RETURN(const CpuRows beta, CheckTensor("delta beta", args.beta, rows, heads));
  WL_ASSIGN_OR_RETURN(const CpuRows decay, CheckTensor("delta decay", args.decay, rows, heads));
  WL_ASSIGN_OR_RETURN(const CpuRows z, CheckTensor("delta gate", args.z, rows, width));
  WL_ASSIGN_OR_RETURN(const CpuRows out, CheckTensor("delta output", args.out, rows, width));
  WL_ASSIGN_OR_RETURN(const float* gamma, CheckNeeded("delta gamma", args.gamma, dim));
  WL_ASSIGN_OR_RETURN(CpuSlotState * memory, CheckState("delta memory", args.memory,
                                                        heads * dim * dim, step_.largest_slot()));
  const int64_t blocks = (dim + kDeltaColumns - 1) / kDeltaColumns;
  const int64_t tasks_of_sequence = heads * blocks;
  pool_.Run(static_cast<int64_t>(step_.sequences().size()) * tasks_of_sequence, [&](int64_t index,
                                                                                    int) {
    const StepState::Sequence& sequence = step_.sequences()[index / tasks_of_sequence];
    const int64_t head = index % tasks_of_sequence / blocks;
    const int64_t first = index % blocks * kDeltaColumns;
    const int64_t key_head =
        args.grouped_heads ? head / (heads / args.n_head_key) : head % args.n_head_key;
    const float* const row = qkv.Row(sequence.first_row);
    hybrid_.delta_block({.memory = memory->Slot(sequence.kv_slot) + head * dim * dim + first,
                         .head_dim = args.head_dim,
                         .columns = static_cast<int>(std::min<int64_t>(kDeltaColumns, dim - first)),
                         .row_count = sequence.row_count,
                         .q = row + key_head * dim,
                         .k = row + key_width + key_head * dim,
                         .v = row + 2 * key_width + head * dim + first,
                         .qkv_stride = qkv.stride,
                         .beta = beta.Row(sequence.first_row) + head,
                         .beta_stride = beta.stride,
                         .decay = decay.Row(sequence.first_row) + head,
                         .decay_stride = decay.stride,
                         .out = out.Row(sequence.first_row) + head * dim + first,
                         .out_stride = out.stride});
  });
  const GateKind gate = args.sigmoid_gate ? GateKind::kSigmoid : GateKind::kSilu;
  ForRows(rows, width, [&](int64_t row) {
    for (int64_t i = 0; i < width; i += dim) {
      row_.rms_norm(out.Row(row) + i, gamma, args.eps, dim, out.Row(row) + i);
    }
    hybrid_.gate(z.Row(row), gate, width, out.Row(row));
  });
  return absl::OkStatus();
}

}  // namespace warpline
