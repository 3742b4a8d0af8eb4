// Asks the device for the largest logits of rows, and waits for the answer.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/raii.h"
#include "kernels/cuda/row_ops.h"

namespace warpline::cuda {

// Belongs to one device, which must be current; used by one thread and one stream. Memory grows
// with what is asked and is kept.
class CandidateFinder {
 public:
  // Checked queries, one for each row. `out` is complete when the call returns.
  absl::Status Run(const FloatRows& logits, absl::Span<const CandidateQuery> queries,
                   absl::Span<RowCandidates> out, cudaStream_t stream);

 private:
  absl::Status RunSome(const FloatRows& logits, absl::Span<const CandidateQuery> queries,
                       absl::Span<RowCandidates> out, cudaStream_t stream);
  absl::StatusOr<const LogitEdit*> CopyEdits(absl::Span<const CandidateQuery> queries,
                                             cudaStream_t stream);

  Scratch chunks_, groups_, edits_, answers_;
  PinnedBuffer staged_edits_, staged_answers_;
};

}  // namespace warpline::cuda
