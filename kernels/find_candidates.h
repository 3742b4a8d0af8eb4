// The candidates of one row of logits, found on the host.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace warpline {

// InvalidArgument when the queries do not fit the logits.
absl::Status CheckQueries(const TopCandidatesArgs& args);

// What Backend::TopCandidates does with a row whose query has been checked. The weights are added
// in the order of the ids.
void FindCandidates(const CandidateQuery& query, absl::Span<float> logits, RowCandidates& out);

}  // namespace warpline
