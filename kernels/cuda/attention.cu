#include "kernels/cuda/attention.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_generic.cuh"
#include "kernels/cuda/attention_prompt.h"
#include "kernels/cuda/cuda_status.h"

namespace warpline::cuda {
namespace {

absl::Status CheckJob(const AttentionJob& job) {
  const KvLayout& layout = job.cache.layout;
  constexpr int kMostRows = 65535;  // of a grid's second dimension
  if (job.step.row_count > kMostRows || layout.head_dim < 1 || layout.head_dim > kMaxHeadDim ||
      job.cache.n_head_kv < 1 || job.n_head % job.cache.n_head_kv != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention of ", job.step.row_count, " rows (at most ", kMostRows, "), ",
                     job.n_head, " heads over ", job.cache.n_head_kv, " of size ", layout.head_dim,
                     " (at most ", kMaxHeadDim, ")"));
  }
  return absl::OkStatus();
}

int64_t PageCount(int64_t context) { return (context + kPageTokens - 1) / kPageTokens; }

// An int8 sequence of so many tokens as halves.
int64_t ExpandedBytes(const KvLayout& layout, int n_head_kv, int64_t context) {
  return 2 * PageCount(context) * n_head_kv *
         MakeKvLayout(KvType::kF16, layout.head_dim).block_bytes;
}

absl::Status RunGeneric(const AttentionJob& job, cudaStream_t stream) {
  const dim3 grid((job.n_head + kGenericWarps - 1) / kGenericWarps, job.step.row_count);
  const dim3 block(kGenericWarps * 32);
  switch (job.cache.layout.type) {
    case KvType::kF32:
      AttendGeneric<KvType::kF32><<<grid, block, 0, stream>>>(job);
      break;
    case KvType::kF16:
      AttendGeneric<KvType::kF16><<<grid, block, 0, stream>>>(job);
      break;
    case KvType::kQ8_0:
      AttendGeneric<KvType::kQ8_0><<<grid, block, 0, stream>>>(job);
      break;
  }
  return LaunchStatus("attention");
}

}  // namespace

absl::StatusOr<PagedAttention> PagedAttention::Create(const Device& device) {
  return PagedAttention(PreparePrompt(device.limits()), PrepareDecode(device.limits()));
}

absl::Status PagedAttention::Reserve(const ReserveArgs& args) {
  const KvLayout layout = MakeKvLayout(args.kv_type, args.head_dim);
  if (PathOf(true, layout, args.n_head, args.n_head_kv) == AttentionPath::kDecode) {
    const int64_t bytes = DecodeScratchBytes(args.max_decode_rows, args.n_head_kv, args.head_dim,
                                             MostParts(args.max_context, true));
    if (bytes > decode_scratch_.bytes()) {
      WL_ASSIGN_OR_RETURN(decode_scratch_, DeviceBuffer::Create(bytes));
    }
  }
  if (args.kv_type == KvType::kQ8_0 &&
      PathOf(false, layout, args.n_head, args.n_head_kv) == AttentionPath::kPrompt) {
    const int64_t bytes = ExpandedBytes(layout, args.n_head_kv, args.max_context);
    if (bytes > expanded_.bytes()) {
      WL_ASSIGN_OR_RETURN(expanded_, DeviceBuffer::Create(bytes));
    }
  }
  return absl::OkStatus();
}

AttentionPath PagedAttention::PathOf(bool is_decode, const KvLayout& layout, int n_head,
                                     int n_head_kv) const {
  if (is_decode && decode_status_.ok() && HasDecodeKernel(layout, n_head, n_head_kv)) {
    return AttentionPath::kDecode;
  }
  if (!is_decode && prompt_status_.ok() && HasPromptKernel(layout)) return AttentionPath::kPrompt;
  return AttentionPath::kGeneric;
}

std::string PagedAttention::Describe() const {
  const auto name = [](const absl::Status& status, absl::string_view fast) {
    return status.ok() ? std::string(fast)
                       : absl::StrCat("generic (", fast, " ", status.message(), ")");
  };
  return absl::StrCat("prompt ", name(prompt_status_, "wgmma"), ", decode ",
                      name(decode_status_, "mma_sync"));
}

std::string PagedAttention::WhyGeneric(const ReserveArgs& args) const {
  const KvLayout layout = MakeKvLayout(args.kv_type, args.head_dim);
  std::string kinds;
  for (const bool is_decode : {false, true}) {
    if (!(is_decode ? decode_status_ : prompt_status_).ok()) continue;  // Describe says so.
    if (PathOf(is_decode, layout, args.n_head, args.n_head_kv) != AttentionPath::kGeneric) continue;
    absl::StrAppend(&kinds, kinds.empty() ? "" : " and ", is_decode ? "decode steps" : "prompts");
  }
  if (kinds.empty()) return kinds;
  constexpr absl::string_view kTypes[] = {"f32", "f16", "q8_0"};
  return absl::StrCat("attention of ", kinds,
                      " is generic, which is slower: no kernel for heads of ", args.head_dim,
                      " values, ", args.n_head, " over ", args.n_head_kv, ", ",
                      kTypes[static_cast<int>(args.kv_type)], " keys and values");
}

absl::Status PagedAttention::RunPrompt(const AttentionJob& job, cudaStream_t stream) const {
  for (const StepSequenceView& sequence : job.step.on_host) {
    if (sequence.row_count == 0) continue;
    PromptArgs args;
    args.job = job;
    args.pages = job.step.pages + sequence.first_page;
    args.first_row = sequence.first_row;
    args.row_count = sequence.row_count;
    args.first_position = sequence.first_position;
    if (job.cache.layout.type == KvType::kQ8_0) {
      const int64_t context = int64_t{sequence.first_position} + sequence.row_count;
      if (ExpandedBytes(job.cache.layout, job.cache.n_head_kv, context) > expanded_.bytes()) {
        return absl::InvalidArgumentError(
            absl::StrCat("attention over ", context, " tokens is more than was reserved"));
      }
      KvView& halves = args.job.cache;
      halves.layout = MakeKvLayout(KvType::kF16, job.cache.layout.head_dim);
      halves.data = expanded_.as();
      const int64_t first_seen =
          job.window > 0 ? std::max(0, sequence.first_position - job.window + 1) : 0;
      WL_RETURN_IF_ERROR(ExpandPages({.cache = job.cache,
                                      .pages = args.pages,
                                      .first_page = static_cast<int32_t>(first_seen / kPageTokens),
                                      .page_count = static_cast<int32_t>(PageCount(context)),
                                      .out = halves},
                                     stream));
      args.pages = nullptr;
    }
    WL_RETURN_IF_ERROR(EnqueuePrompt(args, stream));
  }
  return absl::OkStatus();
}

absl::Status PagedAttention::RunDecode(const AttentionJob& job, cudaStream_t stream) const {
  const int64_t context = job.step.max_context;
  const int64_t parts =
      MostParts(job.window > 0 ? std::min<int64_t>(context, job.window) : context, job.window > 0);
  const int64_t rows = job.step.row_count;
  const int dim = job.cache.layout.head_dim;
  if (DecodeScratchBytes(rows, job.cache.n_head_kv, dim, parts) > decode_scratch_.bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention of ", rows, " rows with a context of ", context, " is more than was reserved"));
  }
  DecodeArgs args;
  args.job = job;
  args.max_parts = static_cast<int32_t>(parts);
  args.values = decode_scratch_.as<float>();
  args.sums = reinterpret_cast<float2*>(args.values +
                                        rows * job.cache.n_head_kv * parts * kMaxDecodeGroup * dim);
  return EnqueueDecode(args, stream);
}

absl::Status PagedAttention::Run(const AttentionJob& job, cudaStream_t stream) const {
  WL_RETURN_IF_ERROR(CheckJob(job));
  if (job.step.row_count == 0) return absl::OkStatus();
  const AttentionPath path =
      PathOf(job.step.is_decode, job.cache.layout, job.n_head, job.cache.n_head_kv);
  switch (path) {
    case AttentionPath::kPrompt:
      return RunPrompt(job, stream);
    case AttentionPath::kDecode:
      return RunDecode(job, stream);
    case AttentionPath::kGeneric:
      return RunGeneric(job, stream);
  }
  return absl::InternalError("no such path of attention");
}

}  // namespace warpline::cuda
