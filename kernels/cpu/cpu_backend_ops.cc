// The ops of the CPU back end: check, then hand to the kernels.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cpu/cpu_backend_impl.h"
#include "kernels/cpu/op_checks.h"
#include "kernels/find_candidates.h"
#include "kernels/quant_decode.h"

namespace warpline {
absl::Status CpuBackend::Embed(const EmbedArgs& args) {
  WL_RETURN_IF_ERROR(CheckInStep());
  WL_ASSIGN_OR_RETURN(const MatrixSlice slice,
                      CheckMatrix("embedding table", {args.table}, -1, -1, 1));
  const CpuWeight& table = *slice.weight;
  WL_ASSIGN_OR_RETURN(const CpuRows out, CheckTensor("embedding", args.out, step_.row_count(),
                                                     args.copies * table.input_width()));
  for (const int32_t token : step_.token_ids()) {
    if (token < 0 || token >= table.output_width()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, " of ", table.output_width()));
    }
  }
  const DequantizeFunction decode = FastDequantizer(table.type(), set_);
  const int64_t width = table.input_width();
  ForRows(out.row_count, out.width, [&](int64_t row) {
    float* const values = out.Row(row);
    decode(table.Column(0, step_.token_ids()[row]), width, values);
    if (table.Scale(0) != 1) row_.scale(table.Scale(0), width, values);
    if (args.factor != 1) row_.scale(args.factor, width, values);
    for (int copy = 1; copy < args.copies; ++copy) {
      std::memcpy(values + copy * width, values, width * sizeof(float));
    }
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::NormConvert(const NormConvertArgs& args) {
  WL_ASSIGN_OR_RETURN(const CpuRows in, CheckTensor("norm input", args.in, -1, -1));
  WL_ASSIGN_OR_RETURN(const CpuRows out,
                      CheckTensor("norm output", args.out, in.row_count, in.width));
  WL_ASSIGN_OR_RETURN(const float* gamma, CheckVector("norm gamma", args.gamma, in.width));
  ForRows(in.row_count, in.width, [&](int64_t row) {
    // The input of a norm that is added is not needed any more.
    float* const normed = args.accumulate ? in.Row(row) : out.Row(row);
    row_.rms_norm(in.Row(row), gamma, args.eps, in.width, normed);
    if (args.accumulate) row_.add(normed, in.width, out.Row(row));
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Linear(const LinearArgs& args) {
  WL_ASSIGN_OR_RETURN(const CpuRows in, CheckTensor("linear input", args.in, -1, -1));
  WL_ASSIGN_OR_RETURN(const CpuRows out, CheckTensor("linear output", args.out, in.row_count, -1));
  WL_ASSIGN_OR_RETURN(const MatrixSlice matrix,
                      CheckMatrix("linear matrix", args.matrix, in.width, out.width, 1));
  product_.Run({PlainJob(matrix, in, out, args.accumulate)});
  return absl::OkStatus();
}

absl::Status CpuBackend::QkvRopeStore(const QkvRopeStoreArgs& args) {
  WL_RETURN_IF_ERROR(CheckInStep());
  WL_ASSIGN_OR_RETURN(const CpuKvCache* cache, CheckCache(args.cache, args.n_head, args.n_head_kv,
                                                          args.head_dim, step_.largest_page()));
  const int head_dim = args.head_dim;
  const int64_t rows = step_.row_count();
  const int64_t q_width = int64_t{args.n_head} * head_dim,
                kv_width = int64_t{args.n_head_kv} * head_dim;
  WL_ASSIGN_OR_RETURN(const CpuRows q, CheckTensor("q", args.q, rows, q_width));
  WL_ASSIGN_OR_RETURN(const CpuRows k, CheckTensor("k", args.k, rows, kv_width));
  WL_ASSIGN_OR_RETURN(const CpuRows v, CheckTensor("v", args.v, rows, kv_width));
  WL_ASSIGN_OR_RETURN(const float* q_gamma, CheckVector("q gamma", args.q_gamma, head_dim));
  WL_ASSIGN_OR_RETURN(const float* k_gamma, CheckVector("k gamma", args.k_gamma, head_dim));
  if (2 * args.rope.inverse_frequency.size() > static_cast<size_t>(head_dim)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rotation of ", 2 * args.rope.inverse_frequency.size(), " values of a head of ", head_dim));
  }
  const int n_rot = static_cast<int>(2 * args.rope.inverse_frequency.size());
  WL_ASSIGN_OR_RETURN(const float* table, rope_tables_.Get(args.rope, step_.positions(), pool_));
  ForRows(rows, q_width + 4 * kv_width, [&](int64_t row) {
    const auto prepare = [&](float* head, const float* gamma) {
      if (gamma != nullptr) row_.rms_norm(head, gamma, args.eps, head_dim, head);
      if (n_rot > 0) row_.rotate(table + row * 2 * n_rot, n_rot, args.rope.interleaved, head);
    };
    for (int h = 0; h < args.n_head; ++h) prepare(q.Row(row) + int64_t{h} * head_dim, q_gamma);
    const StepState::Sequence& sequence = step_.sequences()[step_.sequence_of_row()[row]];
    const int64_t position = step_.positions()[row];
    const int32_t page = step_.PageOf(sequence, position);
    for (int h = 0; h < args.n_head_kv; ++h) {
      float* key = k.Row(row) + int64_t{h} * head_dim;
      prepare(key, k_gamma);
      row_.store_kv(cache->layout(), key, v.Row(row) + int64_t{h} * head_dim,
                    static_cast<int>(position % kPageTokens), cache->Page(page, h));
    }
  });
  return absl::OkStatus();
}

absl::StatusOr<AttentionJob> CpuBackend::CheckAttention(const AttentionArgs& args) const {
  WL_RETURN_IF_ERROR(CheckInStep());
  WL_ASSIGN_OR_RETURN(const CpuKvCache* cache, CheckCache(args.cache, args.n_head, args.n_head_kv,
                                                          args.head_dim, step_.largest_page()));
  const int64_t width = int64_t{args.n_head} * args.head_dim;
  WL_ASSIGN_OR_RETURN(const CpuRows q, CheckTensor("q", args.q, step_.row_count(), width));
  WL_ASSIGN_OR_RETURN(const CpuRows out,
                      CheckTensor("attention output", args.out, step_.row_count(), width));
  if (args.window < 0) return absl::InvalidArgumentError(absl::StrCat("window of ", args.window));
  return AttentionJob{.q = q.data,
                      .q_stride = q.stride,
                      .out = out.data,
                      .out_stride = out.stride,
                      .n_head = args.n_head,
                      .scale = args.scale,
                      .window = args.window,
                      .cache = cache};
}

absl::Status CpuBackend::Attention(const AttentionArgs& args) {
  WL_ASSIGN_OR_RETURN(const AttentionJob job, CheckAttention(args));
  attention_.Run(job, step_);
  return ApplyGate(args);
}

absl::Status CpuBackend::QsaAttend(const QsaAttendArgs& args) {
  WL_ASSIGN_OR_RETURN(AttentionJob job, CheckAttention(args.attention));
  const int64_t stride = 1 + args.most_blocks;
  if (args.attention.window != 0 || args.ratio < 1 || args.most_blocks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("sparse attention to ", args.most_blocks,
                                                   " blocks of ", args.ratio, " with window ",
                                                   args.attention.window));
  }
  WL_ASSIGN_OR_RETURN(const float* selection,
                      CheckNeeded("selection", args.selection, step_.row_count() * stride));
  job.position_end = DensePositions(args.ratio, args.most_blocks);
  attention_.Run(job, step_);
  attention_.RunSelected(job,
                         {.ratio = args.ratio,
                          .blocks = reinterpret_cast<const int32_t*>(selection),
                          .stride = stride},
                         step_);
  return ApplyGate(args.attention);
}

absl::Status CpuBackend::ApplyGate(const AttentionArgs& args) {
  if (args.gate.buffer == nullptr) return absl::OkStatus();
  const int64_t width = int64_t{args.n_head} * args.head_dim;
  WL_ASSIGN_OR_RETURN(const CpuRows out,
                      CheckTensor("attention output", args.out, step_.row_count(), width));
  WL_ASSIGN_OR_RETURN(const CpuRows gate,
                      CheckTensor("attention gate", args.gate, step_.row_count(), width));
  ForRows(out.row_count, width, [&](int64_t row) {
    hybrid_.gate(gate.Row(row), GateKind::kSigmoid, width, out.Row(row));
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::DenseFfn(const DenseFfnArgs& args) {
  WL_ASSIGN_OR_RETURN(const CpuRows in, CheckTensor("ffn input", args.in, -1, -1));
  WL_ASSIGN_OR_RETURN(const MatrixSlice gate, CheckMatrix("ffn gate", args.gate, in.width, -1, 1));
  const int64_t n_ff = gate.weight->output_width();
  WL_ASSIGN_OR_RETURN(const MatrixSlice up, CheckMatrix("ffn up", args.up, in.width, n_ff, 1));
  WL_ASSIGN_OR_RETURN(const MatrixSlice down, CheckMatrix("ffn down", args.down, n_ff, -1, 1));
  WL_ASSIGN_OR_RETURN(const CpuRows out, CheckTensor("ffn output", args.out, in.row_count,
                                                     down.weight->output_width()));
  WL_ASSIGN_OR_RETURN(float* data, hidden_.Floats(std::max(in.row_count, max_rows_) * n_ff));
  const CpuRows hidden{.data = data, .row_count = in.row_count, .width = n_ff, .stride = n_ff};
  MatrixJob gated = PlainJob(gate, in, hidden, false);
  gated.up = up;
  gated.activation = args.activation;
  product_.Run({gated});
  product_.Run({PlainJob(down, hidden, out, args.accumulate)});
  return absl::OkStatus();
}

absl::Status CpuBackend::CheckExperts(const MoeFfnArgs& args, MoeJob& job) const {
  const int64_t n_embd = job.router.weight->input_width();
  const int64_t experts = job.router.weight->output_width();
  WL_ASSIGN_OR_RETURN(job.down, CheckMatrix("experts' down", {args.down}, -1, n_embd, experts));
  job.n_ff = job.down.weight->input_width();
  if (args.gate_up != nullptr) {
    WL_ASSIGN_OR_RETURN(
        job.gate, CheckMatrix("experts' gate_up", {args.gate_up}, n_embd, 2 * job.n_ff, experts));
    job.up = job.gate;
    job.up.first_column = job.n_ff;
  } else {
    WL_ASSIGN_OR_RETURN(job.gate,
                        CheckMatrix("experts' gate", {args.gate}, n_embd, job.n_ff, experts));
    WL_ASSIGN_OR_RETURN(job.up, CheckMatrix("experts' up", {args.up}, n_embd, job.n_ff, experts));
  }
  if (args.used_count <= 0 || args.used_count > experts) {
    return absl::InvalidArgumentError(absl::StrCat(args.used_count, " of ", experts, " experts"));
  }
  if (args.shared_gate_input == nullptr) return absl::OkStatus();
  WL_ASSIGN_OR_RETURN(const MatrixSlice input,
                      CheckMatrix("shared expert's gate", {args.shared_gate_input}, n_embd, 1, 1));
  job.shared_gate_input = input.weight;
  WL_ASSIGN_OR_RETURN(job.shared_gate, CheckMatrix("shared gate", args.shared_gate, n_embd, -1, 1));
  const int64_t shared_ff = job.shared_gate.weight->output_width();
  WL_ASSIGN_OR_RETURN(job.shared_up,
                      CheckMatrix("shared up", args.shared_up, n_embd, shared_ff, 1));
  WL_ASSIGN_OR_RETURN(job.shared_down,
                      CheckMatrix("shared down", args.shared_down, shared_ff, n_embd, 1));
  return absl::OkStatus();
}

absl::Status CpuBackend::MoeFfn(const MoeFfnArgs& args) {
  WL_ASSIGN_OR_RETURN(const CpuRows in, CheckTensor("moe input", args.in, -1, -1));
  WL_ASSIGN_OR_RETURN(const CpuRows out,
                      CheckTensor("moe output", args.out, in.row_count, in.width));
  MoeJob job{.used_count = args.used_count,
             .renormalise = args.renormalise,
             .row_count = in.row_count,
             .x = in.data,
             .x_stride = in.stride,
             .out = out.data,
             .out_stride = out.stride,
             .accumulate = args.accumulate};
  WL_ASSIGN_OR_RETURN(job.router, CheckMatrix("router", args.router, in.width, -1, 1));
  WL_RETURN_IF_ERROR(CheckExperts(args, job));
  return moe_.Run(job);
}

absl::Status CpuBackend::Head(const HeadArgs& args) {
  WL_ASSIGN_OR_RETURN(const CpuRows in, CheckTensor("head input", args.in, -1, -1));
  WL_ASSIGN_OR_RETURN(const CpuRows out,
                      CheckTensor("logits", args.out, static_cast<int64_t>(args.rows.size()), -1));
  WL_ASSIGN_OR_RETURN(const MatrixSlice matrix,
                      CheckMatrix("head matrix", args.matrix, in.width, out.width, 1));
  WL_ASSIGN_OR_RETURN(float* data,
                      head_rows_.Floats(std::max(out.row_count, max_rows_) * in.width));
  const CpuRows chosen{
      .data = data, .row_count = out.row_count, .width = in.width, .stride = in.width};
  for (int64_t i = 0; i < out.row_count; ++i) {
    const int32_t row = args.rows[i];
    if (row < 0 || row >= in.row_count) {
      return absl::InvalidArgumentError(absl::StrCat("head row ", row, " of ", in.row_count));
    }
    std::memcpy(chosen.Row(i), in.Row(row), in.width * sizeof(float));
  }
  product_.Run({PlainJob(matrix, chosen, out, false)});
  if (args.soft_cap > 0) {
    ForRows(out.row_count, out.width,
            [&](int64_t row) { row_.soft_cap(args.soft_cap, out.width, out.Row(row)); });
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::TopCandidates(const TopCandidatesArgs& args) {
  WL_ASSIGN_OR_RETURN(const CpuRows logits, CheckTensor("logits", args.logits, -1, -1));
  WL_RETURN_IF_ERROR(CheckQueries(args));
  pool_.Run(logits.row_count, [&](int64_t row, int) {
    FindCandidates(args.queries[row], absl::MakeSpan(logits.Row(row), logits.width), args.out[row]);
  });
  return absl::OkStatus();
}

}  // namespace warpline
