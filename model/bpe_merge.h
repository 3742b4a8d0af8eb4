// The merge loop that BPE and SPM share: adjacent symbols are joined, lowest rank first, leftmost
// first among equals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"

namespace warpline {

// What joining two symbols gives. `piece` is a number that the caller gives a meaning.
struct PairMerge {
  int32_t rank = -1;  // negative: the two do not join
  int32_t piece = -1;
};

struct MergeSymbol {
  int32_t piece = -1;
  uint32_t begin = 0;  // bytes of the text that the symbol covers, half-open
  uint32_t end = 0;
  int32_t previous = -1;  // indices of the neighbours that are left, -1 at the ends
  int32_t next = -1;
  PairMerge with_next;
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
    std::vector<int32_t> ascending;
    size_t taken = 0;           // of `ascending`
    std::vector<int32_t> late;  // min-heap of positions that came out of order
  };

  absl::flat_hash_map<int32_t, int32_t> bucket_of_rank_;
  std::vector<Bucket> buckets_;
  std::vector<int32_t> free_buckets_;
  std::vector<int32_t> ranks_;  // min-heap, each rank that has a bucket once
};

// Joins symbols until no adjacent pair joins any more. `symbols` come with piece, begin and end
// set, in text order; afterwards the remaining ones are those reached from symbols[0] by `next`.
void MergeSymbols(
    absl::FunctionRef<PairMerge(const MergeSymbol& left, const MergeSymbol& right)> find_merge,
    RankQueue* queue, std::vector<MergeSymbol>* symbols);

}  // namespace warpline
