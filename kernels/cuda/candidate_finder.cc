#include "kernels/cuda/candidate_finder.h"

#include <algorithm>

#include "base/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/top_candidates.h"

namespace warpline::cuda {
namespace {

// The stream must not use it any more.
absl::Status Grow(int64_t bytes, PinnedBuffer& buffer) {
  if (bytes <= buffer.bytes()) return absl::OkStatus();
  buffer = PinnedBuffer();
  WL_ASSIGN_OR_RETURN(buffer, PinnedBuffer::Create(2 * bytes));
  return absl::OkStatus();
}

void Unpack(const CandidateAnswer& answer, const Candidate* candidates, RowCandidates& out) {
  out.all_finite = answer.all_finite != 0;
  out.largest = answer.largest;
  out.weight_sum = answer.weight_sum;
  out.candidates.assign(candidates, candidates + answer.count);
}

}  // namespace

absl::Status CandidateFinder::Run(const FloatRows& logits, absl::Span<const CandidateQuery> queries,
                                  absl::Span<RowCandidates> out, cudaStream_t stream) {
  for (int64_t first = 0; first < logits.row_count; first += kMostCandidateRows) {
    FloatRows some = logits;
    some.data += first * logits.stride;
    some.row_count = std::min<int64_t>(kMostCandidateRows, logits.row_count - first);
    const auto begin = static_cast<size_t>(first);
    const auto count = static_cast<size_t>(some.row_count);
    WL_RETURN_IF_ERROR(
        RunSome(some, queries.subspan(begin, count), out.subspan(begin, count), stream));
  }
  return absl::OkStatus();
}

// Nothing is copied where there are no edits, which is most steps.
absl::StatusOr<const LogitEdit*> CandidateFinder::CopyEdits(
    absl::Span<const CandidateQuery> queries, cudaStream_t stream) {
  size_t count = 0;
  for (const CandidateQuery& query : queries) count += query.edits.size();
  if (count == 0) return nullptr;
  const size_t bytes = count * sizeof(LogitEdit);
  WL_RETURN_IF_ERROR(Grow(static_cast<int64_t>(bytes), staged_edits_));
  LogitEdit* end = staged_edits_.as<LogitEdit>();
  for (const CandidateQuery& query : queries) {
    end = std::copy(query.edits.begin(), query.edits.end(), end);
  }
  WL_ASSIGN_OR_RETURN(LogitEdit* const edits, edits_.Get<LogitEdit>(static_cast<int64_t>(count)));
  WL_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(edits, staged_edits_.as(), bytes, cudaMemcpyHostToDevice, stream),
                 "copying edits of logits to the device"));
  return edits;
}

absl::Status CandidateFinder::RunSome(const FloatRows& logits,
                                      absl::Span<const CandidateQuery> queries,
                                      absl::Span<RowCandidates> out, cudaStream_t stream) {
  TopCandidatesJob job{.logits = logits, .shape = ShapeOfScan(logits.width)};
  int32_t edit_count = 0;
  for (size_t row = 0; row < queries.size(); ++row) {
    const CandidateQuery& query = queries[row];
    job.rows[row] = {.first_edit = edit_count,
                     .edit_count = static_cast<int32_t>(query.edits.size()),
                     .most = query.most,
                     .penalties = {.repetition = query.repetition_penalty,
                                   .presence = query.presence_penalty,
                                   .frequency = query.frequency_penalty},
                     .temperature = query.temperature};
    edit_count += job.rows[row].edit_count;
    job.candidate_stride = std::max(job.candidate_stride, query.most);
  }
  WL_ASSIGN_OR_RETURN(job.edits, CopyEdits(queries, stream));
  const int64_t rows = logits.row_count;
  WL_ASSIGN_OR_RETURN(job.chunks, chunks_.Get<ChunkSummary>(rows * job.shape.chunk_count));
  if (job.candidate_stride > 1) {
    WL_ASSIGN_OR_RETURN(job.groups, groups_.Get<uint64_t>(rows * job.shape.group_count));
  }
  // The answers of all rows and then their candidates, so that one copy brings both.
  static_assert(sizeof(CandidateAnswer) % alignof(Candidate) == 0);
  const int64_t answer_bytes = rows * static_cast<int64_t>(sizeof(CandidateAnswer));
  const int64_t bytes =
      answer_bytes + rows * job.candidate_stride * static_cast<int64_t>(sizeof(Candidate));
  WL_ASSIGN_OR_RETURN(uint8_t* const memory, answers_.Get<uint8_t>(bytes));
  job.answers = reinterpret_cast<CandidateAnswer*>(memory);
  job.candidates = reinterpret_cast<Candidate*>(memory + answer_bytes);
  WL_RETURN_IF_ERROR(Grow(bytes, staged_answers_));
  WL_RETURN_IF_ERROR(TopCandidates(job, stream));
  WL_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(staged_answers_.as(), memory, static_cast<size_t>(bytes),
                                 cudaMemcpyDeviceToHost, stream),
                 "copying candidates from the device"));
  WL_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), "waiting for candidates"));
  const auto* const answers = staged_answers_.as<CandidateAnswer>();
  const auto* const candidates = reinterpret_cast<const Candidate*>(answers + rows);
  for (int64_t row = 0; row < rows; ++row) {
    Unpack(answers[row], candidates + row * job.candidate_stride, out[static_cast<size_t>(row)]);
  }
  return absl::OkStatus();
}

}  // namespace warpline::cuda
