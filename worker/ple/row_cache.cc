#include "worker/ple/row_cache.h"

#include <algorithm>
#include <cstring>

namespace warpline {
namespace {

// Of one row in the index: an entry of two words and a control byte, in a table that is at least
// 7/16 full when all places are taken.
constexpr int64_t kIndexBytes = 17 * 16 / 7 + 1;

}  // namespace

RowCache::RowCache(int64_t row_bytes, int64_t max_bytes)
    : row_bytes_(row_bytes),
      capacity_(std::max<int64_t>(max_bytes, 0) /
                (row_bytes + static_cast<int64_t>(sizeof(Place)) + kIndexBytes)) {
  // At once, so that growing never holds two tables.
  index_.reserve(capacity_);
  places_.reserve(capacity_);
}

const uint8_t* RowCache::Find(int64_t row) {
  const auto found = index_.find(row);
  if (found == index_.end()) return nullptr;
  places_[found->second].was_found = true;
  return Data(found->second);
}

void RowCache::Insert(int64_t row, const uint8_t* bytes) {
  if (capacity_ == 0 || index_.contains(row)) return;
  const int64_t place = TakePlace();
  places_[place] = {.row = row, .was_found = false};
  index_[row] = place;
  std::memcpy(Data(place), bytes, row_bytes_);
}

int64_t RowCache::TakePlace() {
  if (size() < capacity_) {
    if (size() % kBlockRows == 0) {
      const int64_t rows = std::min(kBlockRows, capacity_ - size());
      blocks_.emplace_back(new uint8_t[rows * row_bytes_]);
    }
    places_.push_back({});
    return size() - 1;
  }
  while (places_[hand_].was_found) {
    places_[hand_].was_found = false;
    hand_ = (hand_ + 1) % capacity_;
  }
  const int64_t place = hand_;
  hand_ = (hand_ + 1) % capacity_;
  index_.erase(places_[place].row);
  return place;
}

}  // namespace warpline
