#include "model/bpe_merge.h"

#include <algorithm>
#include <functional>

namespace warpline {
namespace {

// Below this many symbols looking at all pairs is faster than keeping a queue.
constexpr size_t kShortCount = 24;

using FindMerge = absl::FunctionRef<PairMerge(const MergeSymbol&, const MergeSymbol&)>;

class Merger {
 public:
  Merger(FindMerge find_merge, std::vector<MergeSymbol>* symbols)
      : find_merge_(find_merge), symbols_(*symbols) {}

  void RunShort() {
    Link([](int32_t) {});
    while (true) {
      int32_t best = -1;
      for (int32_t i = 0; i >= 0; i = symbols_[i].next) {
        const int32_t rank = symbols_[i].rank_with_next;
        if (rank >= 0 && (best < 0 || rank < symbols_[best].rank_with_next)) best = i;
      }
      if (best < 0) return;
      Join(best);
    }
  }

  void RunLong(RankQueue* queue) {
    Link([this, queue](int32_t left) { PushPair(left, queue); });
    int32_t rank = 0;
    int32_t left = 0;
    while (queue->Pop(&rank, &left)) {
      // An entry is stale when its left symbol is gone or its pair has another rank by now; a
      // joined symbol's pair has none.
      if (symbols_[left].rank_with_next != rank) continue;
      Join(left);
      if (symbols_[left].previous >= 0) PushPair(symbols_[left].previous, queue);
      PushPair(left, queue);
    }
  }

 private:
  // Sets up the list in one pass over the symbols, which may be more than fit into a cache. A pair
  // is looked up when the links of both of its symbols are known.
  template <typename Linked>
  void Link(Linked linked) {
    const int32_t count = static_cast<int32_t>(symbols_.size());
    for (int32_t i = 0; i < count; ++i) {
      symbols_[i].previous = i - 1;
      symbols_[i].next = i + 1 < count ? i + 1 : -1;
      if (i == 0) continue;
      FindPair(i - 1);
      linked(i - 1);
    }
  }

  void FindPair(int32_t left) {
    MergeSymbol& symbol = symbols_[left];
    symbol.rank_with_next = symbol.next < 0 ? -1 : find_merge_(symbol, symbols_[symbol.next]).rank;
  }

  void PushPair(int32_t left, RankQueue* queue) const {
    if (symbols_[left].rank_with_next >= 0) queue->Push(symbols_[left].rank_with_next, left);
  }

  // The right symbol disappears into the left one.
  void Join(int32_t left) {
    MergeSymbol& symbol = symbols_[left];
    MergeSymbol& right = symbols_[symbol.next];
    symbol.value = find_merge_(symbol, right).value;
    symbol.next = right.next;
    right.rank_with_next = -1;
    if (symbol.next >= 0) symbols_[symbol.next].previous = left;
    FindPair(left);
    if (symbol.previous >= 0) FindPair(symbol.previous);
  }

  FindMerge find_merge_;
  std::vector<MergeSymbol>& symbols_;
};

}  // namespace

void RankQueue::Push(int32_t rank, int32_t position) {
  const auto [entry, added] =
      bucket_of_rank_.try_emplace(rank, static_cast<int32_t>(buckets_.size()));
  if (added) {
    if (free_buckets_.empty()) {
      buckets_.emplace_back();
    } else {
      entry->second = free_buckets_.back();
      free_buckets_.pop_back();
    }
    ranks_.push_back(rank);
    std::push_heap(ranks_.begin(), ranks_.end(), std::greater<>());
  }
  Bucket& bucket = buckets_[entry->second];
  if (bucket.ascending.empty() || position >= bucket.ascending.back()) {
    bucket.ascending.push_back(position);
  } else {
    bucket.late.push_back(position);
    std::push_heap(bucket.late.begin(), bucket.late.end(), std::greater<>());
  }
}

bool RankQueue::Pop(int32_t* rank, int32_t* position) {
  if (ranks_.empty()) return false;
  *rank = ranks_.front();
  const auto entry = bucket_of_rank_.find(*rank);
  Bucket& bucket = buckets_[entry->second];
  if (bucket.late.empty() ||
      (!bucket.ascending.empty() && bucket.ascending.front() <= bucket.late.front())) {
    *position = bucket.ascending.front();
    bucket.ascending.pop_front();
  } else {
    *position = bucket.late.front();
    std::pop_heap(bucket.late.begin(), bucket.late.end(), std::greater<>());
    bucket.late.pop_back();
  }
  if (bucket.ascending.empty() && bucket.late.empty()) {
    free_buckets_.push_back(entry->second);
    bucket_of_rank_.erase(entry);
    std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<>());
    ranks_.pop_back();
  }
  return true;
}

void MergeSymbols(FindMerge find_merge, RankQueue* queue, std::vector<MergeSymbol>* symbols) {
  if (symbols->empty()) return;
  Merger merger(find_merge, symbols);
  if (symbols->size() <= kShortCount) {
    merger.RunShort();
  } else {
    merger.RunLong(queue);
  }
}

}  // namespace warpline
