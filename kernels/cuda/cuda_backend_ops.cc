// The ops of the CUDA back end but for experts and the head: check, then enqueue kernels.
#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_backend_impl.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/qkv_rope.h"

namespace warpline::cuda {
namespace {

absl::Status NotOnCuda(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat("the CUDA back end cannot run ", what, " yet"));
}

}  // namespace

absl::Status CudaBackend::Embed(const EmbedArgs& args) {
  WL_RETURN_IF_ERROR(CheckInStep());
  WL_ASSIGN_OR_RETURN(const CheckedMatrix matrix,
                      CheckMatrix("embedding table", {args.table}, -1, -1, 1));
  const CudaWeight& table = *matrix.weight;
  WL_ASSIGN_OR_RETURN(const FloatRows out, CheckRows("embedding", args.out, step_.row_count(),
                                                     args.copies * table.input_width()));
  for (const int32_t token : step_.token_ids()) {
    if (token < 0 || token >= table.output_width()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, " of ", table.output_width()));
    }
  }
  WL_ASSIGN_OR_RETURN(const bool is_live, EnterOp(1, &table, out));
  if (!is_live) return absl::OkStatus();
  WL_RETURN_IF_ERROR(faults_.CountStep(stream_.get()));
  products_->ForgetInput();
  WL_ASSIGN_OR_RETURN(const uint8_t* const blocks, table.Blocks());
  return DecodeRows({.type = table.type(),
                     .blocks = blocks,
                     .ids = tables_->view().token_ids,
                     .row_count = out.row_count,
                     .width = table.input_width(),
                     .grids = grids_.grids(),
                     .scale = table.scale(),
                     .factor = args.factor,
                     .copies = args.copies,
                     .out = out.data,
                     .out_stride = out.stride},
                    stream_.get());
}

absl::Status CudaBackend::NormConvert(const NormConvertArgs& args) {
  WL_ASSIGN_OR_RETURN(const FloatRows in, CheckRows("norm input", args.in, -1, -1));
  WL_ASSIGN_OR_RETURN(const FloatRows out,
                      CheckRows("norm output", args.out, in.row_count, in.width));
  WL_ASSIGN_OR_RETURN(const float* gamma, CheckVector("norm gamma", args.gamma, in.width));
  WL_ASSIGN_OR_RETURN(const bool is_live,
                      EnterFollowingOp(2, in, gamma, out, args.accumulate ? 1 : 0));
  if (!is_live) return absl::OkStatus();
  products_->ForgetInput();
  return Norm({.in = in,
               .gamma = gamma,
               .eps = args.eps,
               .out = out,
               .accumulate = args.accumulate,
               .is_early = device_.starts_early()});
}

absl::Status CudaBackend::Norm(NormArgs norm) {
  if (!is_decode_) return NormRows(norm, stream_.get());
  const bool takes_sums = deferred_sums_.has_value() && CanNormSums(*deferred_sums_, norm);
  if (!takes_sums) WL_RETURN_IF_ERROR(RunDeferred());
  WL_ASSIGN_OR_RETURN(const MatrixProducts::HalfRows room, products_->MakeHalves(norm.out, true));
  norm.halves = room.halves;
  norm.row_scale = room.row_scale;
  if (!takes_sums) {
    deferred_norm_ = norm;
    return absl::OkStatus();
  }
  const SlotSums sums = *deferred_sums_;
  deferred_sums_.reset();
  return NormSums(sums, norm, stream_.get());
}

absl::Status CudaBackend::RunDeferred() {
  if (deferred_norm_.has_value()) {
    const NormArgs norm = *deferred_norm_;
    deferred_norm_.reset();
    WL_RETURN_IF_ERROR(NormRows(norm, stream_.get()));
  }
  if (!deferred_sums_.has_value()) return absl::OkStatus();
  const SlotSums sums = *deferred_sums_;
  deferred_sums_.reset();
  return MakeSums(sums, stream_.get());
}

absl::Status CudaBackend::Linear(const LinearArgs& args) {
  WL_ASSIGN_OR_RETURN(const FloatRows in, CheckRows("linear input", args.in, -1, -1));
  WL_ASSIGN_OR_RETURN(const FloatRows out, CheckRows("linear output", args.out, in.row_count, -1));
  WL_ASSIGN_OR_RETURN(const CheckedMatrix matrix,
                      CheckMatrix("linear matrix", args.matrix, in.width, out.width, 1));
  WL_ASSIGN_OR_RETURN(const bool is_live, EnterOp(3, matrix.weight, matrix.bias, in, out));
  if (!is_live) return absl::OkStatus();
  return products_->Run({.weight = matrix.weight,
                         .bias = matrix.bias,
                         .in = in,
                         .out = out,
                         .accumulate = args.accumulate,
                         .is_decode = is_decode_},
                        stream_.get());
}

absl::Status CudaBackend::QkvRopeStore(const QkvRopeStoreArgs& args) {
  WL_RETURN_IF_ERROR(CheckInStep());
  WL_ASSIGN_OR_RETURN(const CudaKvCache* cache, CheckCache(args.cache, args.n_head, args.n_head_kv,
                                                           args.head_dim, step_.largest_page()));
  const int64_t rows = step_.row_count();
  const int64_t kv_width = int64_t{args.n_head_kv} * args.head_dim;
  WL_ASSIGN_OR_RETURN(const FloatRows q,
                      CheckRows("q", args.q, rows, int64_t{args.n_head} * args.head_dim));
  WL_ASSIGN_OR_RETURN(const FloatRows k, CheckRows("k", args.k, rows, kv_width));
  WL_ASSIGN_OR_RETURN(const FloatRows v, CheckRows("v", args.v, rows, kv_width));
  WL_ASSIGN_OR_RETURN(const float* q_gamma, CheckVector("q gamma", args.q_gamma, args.head_dim));
  WL_ASSIGN_OR_RETURN(const float* k_gamma, CheckVector("k gamma", args.k_gamma, args.head_dim));
  const size_t pairs = args.rope.inverse_frequency.size();
  if (2 * pairs > static_cast<size_t>(args.head_dim)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotation of ", 2 * pairs, " values of a head of ", args.head_dim));
  }
  if (rows == 0) return absl::OkStatus();
  WL_ASSIGN_OR_RETURN(const bool is_live, EnterOp(4, q, k, v, cache, q_gamma));
  if (!is_live) return absl::OkStatus();
  products_->ForgetInput();
  const float2* rotation = nullptr;
  if (pairs > 0) {
    WL_ASSIGN_OR_RETURN(rotation, rope_tables_->Get(args.rope, tables_->view(), stream_.get()));
  }
  return ::warpline::cuda::QkvRopeStore({.step = tables_->view(),
                                         .q = q.data,
                                         .q_stride = q.stride,
                                         .k = k.data,
                                         .k_stride = k.stride,
                                         .v = v.data,
                                         .v_stride = v.stride,
                                         .n_head = args.n_head,
                                         .q_gamma = q_gamma,
                                         .k_gamma = k_gamma,
                                         .eps = args.eps,
                                         .rotation = rotation,
                                         .pairs = static_cast<int32_t>(pairs),
                                         .interleaved = args.rope.interleaved,
                                         .cache = cache->view(),
                                         .is_early = device_.starts_early()},
                                        stream_.get());
}

absl::Status CudaBackend::Attention(const AttentionArgs& args) {
  WL_RETURN_IF_ERROR(CheckInStep());
  WL_ASSIGN_OR_RETURN(const CudaKvCache* cache, CheckCache(args.cache, args.n_head, args.n_head_kv,
                                                           args.head_dim, step_.largest_page()));
  const int64_t rows = step_.row_count();
  const int64_t width = int64_t{args.n_head} * args.head_dim;
  WL_ASSIGN_OR_RETURN(const FloatRows q, CheckRows("q", args.q, rows, width));
  WL_ASSIGN_OR_RETURN(const FloatRows out, CheckRows("attention output", args.out, rows, width));
  if (args.window < 0) return absl::InvalidArgumentError(absl::StrCat("window of ", args.window));
  if (rows == 0) return absl::OkStatus();
  WL_ASSIGN_OR_RETURN(const bool is_live, EnterOp(5, q, out, cache, static_cast<int>(args.window)));
  if (!is_live) return absl::OkStatus();
  products_->ForgetInput();
  AttentionJob job = {
      .step = tables_->view(),
      .q = q.data,
      .q_stride = q.stride,
      .out = out.data,
      .out_stride = out.stride,
      .n_head = args.n_head,
      .scale = args.scale,
      // No context is longer, so a larger window hides nothing.
      .window = static_cast<int32_t>(args.window > tables_->view().max_context ? 0 : args.window),
      .cache = cache->view()};
  if (args.gate.buffer != nullptr) {
    WL_ASSIGN_OR_RETURN(const FloatRows gate, CheckRows("attention gate", args.gate, rows, width));
    job.gate = gate.data;
    job.gate_stride = gate.stride;
  }
  // Means of halves are halves already, but for their rounding.
  if (is_decode_ && cache->args().type == KvType::kF16 && width % kPadK == 0 &&
      attention_->PathOf(true, job.cache.layout, job.n_head, job.cache.n_head_kv) ==
          AttentionPath::kDecode) {
    WL_ASSIGN_OR_RETURN(const MatrixProducts::HalfRows room, products_->MakeHalves(out, false));
    job.halves = room.halves;
  }
  if (recorder_.is_recorded()) return attention_->Run(job, stream_.get());
  const int64_t decode_rows = is_decode_ ? rows : 1;
  WL_RETURN_IF_ERROR(attention_->Reserve(
      {.kv_type = cache->args().type,
       .n_head = args.n_head,
       .n_head_kv = args.n_head_kv,
       .head_dim = args.head_dim,
       .max_decode_rows = decode_rows,
       .max_context = std::max<int64_t>(max_context_, tables_->view().max_context)}));
  return attention_->Run(job, stream_.get());
}

absl::StatusOr<CudaBackend::FfnJob> CudaBackend::CheckFfn(const LinearWeight& gate,
                                                          const LinearWeight& up,
                                                          const LinearWeight& down,
                                                          const FloatRows& in) const {
  FfnJob job{.in = in};
  WL_ASSIGN_OR_RETURN(job.gate, CheckMatrix("ffn gate", gate, in.width, -1, 1));
  const int64_t n_ff = job.gate.weight->output_width();
  WL_ASSIGN_OR_RETURN(job.up, CheckMatrix("ffn up", up, in.width, n_ff, 1));
  WL_ASSIGN_OR_RETURN(job.down, CheckMatrix("ffn down", down, n_ff, -1, 1));
  return job;
}

absl::Status CudaBackend::RunFfn(const FfnJob& job) {
  if (job.in.row_count == 0) return absl::OkStatus();
  const int64_t n_ff = job.gate.weight->output_width();
  const int64_t most = MostRows(job.in.row_count) * n_ff;
  FloatRows gate{nullptr, job.in.row_count, n_ff, n_ff};
  FloatRows up = gate;
  WL_ASSIGN_OR_RETURN(gate.data, gate_.Get<float>(most));
  WL_ASSIGN_OR_RETURN(up.data, up_.Get<float>(most));
  const auto multiply = [&](const CheckedMatrix& matrix, const FloatRows& out) {
    return products_->Run({.weight = matrix.weight,
                           .bias = matrix.bias,
                           .in = job.in,
                           .out = out,
                           .is_decode = is_decode_},
                          stream_.get());
  };
  WL_RETURN_IF_ERROR(multiply(job.gate, gate));
  WL_RETURN_IF_ERROR(multiply(job.up, up));
  WL_RETURN_IF_ERROR(ActivateRows(job.activation, gate, up, stream_.get()));
  products_->ForgetInput();
  return products_->Run({.weight = job.down.weight,
                         .bias = job.down.bias,
                         .in = gate,
                         .out = job.out,
                         .row_gate = job.row_gate,
                         .accumulate = job.accumulate,
                         .is_decode = is_decode_},
                        stream_.get());
}

absl::Status CudaBackend::DenseFfn(const DenseFfnArgs& args) {
  WL_ASSIGN_OR_RETURN(const FloatRows in, CheckRows("ffn input", args.in, -1, -1));
  WL_ASSIGN_OR_RETURN(FfnJob job, CheckFfn(args.gate, args.up, args.down, in));
  WL_ASSIGN_OR_RETURN(
      job.out, CheckRows("ffn output", args.out, in.row_count, job.down.weight->output_width()));
  job.activation = args.activation;
  job.accumulate = args.accumulate;
  WL_ASSIGN_OR_RETURN(const bool is_live,
                      EnterOp(6, job.gate.weight, job.up.weight, job.down.weight, in, job.out));
  if (!is_live) return absl::OkStatus();
  return RunFfn(job);
}

absl::Status CudaBackend::QsaIndexSelect(const QsaIndexSelectArgs& /*args*/) {
  return NotOnCuda("sparse attention");
}
absl::Status CudaBackend::QsaAttend(const QsaAttendArgs& /*args*/) {
  return NotOnCuda("sparse attention");
}
absl::Status CudaBackend::HyperMix(const HyperMixArgs& /*args*/) {
  return NotOnCuda("hyper-connections");
}
absl::Status CudaBackend::HyperCombine(const HyperCombineArgs& /*args*/) {
  return NotOnCuda("hyper-connections");
}
absl::Status CudaBackend::Ple(const PleArgs& /*args*/) { return NotOnCuda("n-gram tables"); }
absl::Status CudaBackend::DeltaPrep(const DeltaPrepArgs& /*args*/) {
  return NotOnCuda("Gated DeltaNet layers");
}
absl::Status CudaBackend::DeltaRun(const DeltaRunArgs& /*args*/) {
  return NotOnCuda("Gated DeltaNet layers");
}

}  // namespace warpline::cuda
