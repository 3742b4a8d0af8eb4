// Edits rows of logits and finds the largest of each, for the draw of a token on the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/logit_edit.h"

namespace warpline::cuda {

constexpr int kMostCandidateRows = 32;  // of one launch: their queries are arguments of the kernels

// A row is scanned in chunks, a block each. Each warp of it sees `kScanValues` neighbouring logits
// and tells the largest of each group, which is what `group_lanes` neighbouring lanes saw: groups
// bound from below what the row's largest logits can be.
constexpr int kScanWarps = 8;
constexpr int kScanPerLane = 8;
constexpr int kScanValues = 32 * kScanPerLane;
constexpr int kChunk = kScanWarps * kScanValues;

struct ScanShape {
  int32_t chunk_count = 0;
  int32_t group_lanes = 1;  // a power of two up to 32
  int32_t group_count = 0;
};
// About a thousand groups, whatever the vocabulary: some hundreds of candidates then lie above the
// bound.
ScanShape ShapeOfScan(int64_t n_vocab);

struct ChunkSummary {
  uint64_t largest = 0;    // a key: logit and token
  double weight_sum = 0;   // relative to the chunk's largest
  int32_t all_finite = 1;  // before the edits
};

// A row's query, and what becomes of it.
struct CandidateRow {
  int32_t first_edit = 0;  // of `edits`
  int32_t edit_count = 0;
  int32_t most = 1;
  LogitPenalties penalties;
  double temperature = 0;
};
struct CandidateAnswer {
  double weight_sum = 0;
  float largest = 0;
  int32_t all_finite = 1;
  int32_t count = 0;
};

struct TopCandidatesJob {
  FloatRows logits;  // at most kMostCandidateRows
  const LogitEdit* edits = nullptr;
  ScanShape shape;
  ChunkSummary* chunks = nullptr;  // [rows][chunk_count]
  uint64_t* groups = nullptr;      // [rows][group_count]; unused where no row wants more than one
  CandidateAnswer* answers = nullptr;  // [rows]
  Candidate* candidates = nullptr;     // [rows][candidate_stride]
  int32_t candidate_stride = 1;        // the most that any row wants
  CandidateRow rows[kMostCandidateRows];
};

// Asynchronous on `stream`. A row's result depends on nothing but the row and its query.
absl::Status TopCandidates(const TopCandidatesJob& job, cudaStream_t stream);

}  // namespace warpline::cuda
