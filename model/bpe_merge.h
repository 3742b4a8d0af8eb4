// The merge loop that BPE and SPM share: adjacent symbols are joined, lowest rank first, leftmost
// first among equals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"

namespace warpline {

// What joining two symbols gives.
struct PairMerge {
  int32_t rank = -1;   // negative: the two do not join
  int32_t value = -1;  // of the joined symbol
};

// Small, because a text of one word has as many as it has bytes.
struct MergeSymbol {
  int32_t value = -1;     // what the caller tells symbols apart by
  int32_t previous = -1;  // indices of the neighbours that are left, -1 at the ends
  int32_t next = -1;
  int32_t rank_with_next = -1;  // negative: the two do not join
};

// A priority queue of (rank, position), smallest first. Positions that come in ascending order
// within their rank, as nearly all do, cost no more than a push to an array: long runs stay linear
// and friendly to caches.
class RankQueue {
 public:
  void Push(int32_t rank, int32_t position);
  // False when empty.
  bool Pop(int32_t* rank, int32_t* position);

 private:
  struct Bucket {
    std::deque<int32_t> ascending;
    std::vector<int32_t> late;  // min-heap of positions that came out of order
  };

  absl::flat_hash_map<int32_t, int32_t> bucket_of_rank_;
  std::deque<Bucket> buckets_;
  std::vector<int32_t> free_buckets_;
  std::vector<int32_t> ranks_;  // min-heap, each rank that has a bucket once
};

// Joins symbols until no adjacent pair joins any more. `symbols` come with their values, in text
// order; afterwards the remaining ones are those reached from symbols[0] by `next`. `find_merge` is
// given two neighbours among `symbols`.
void MergeSymbols(
    absl::FunctionRef<PairMerge(const MergeSymbol& left, const MergeSymbol& right)> find_merge,
    RankQueue* queue, std::vector<MergeSymbol>* symbols);

}  // namespace warpline
