// Rows of the n-gram table kept in memory, as they lie in the file, under a cap of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace warpline {

// Replaces by the clock rule: a row that was found since the hand last passed is spared once. Used
// by one thread.
class RowCache {
 public:
  // `max_bytes` covers the rows and what it takes to find them; too few for one row: no cache.
  RowCache(int64_t row_bytes, int64_t max_bytes);

  // The row's bytes, valid until the next Insert; null when it is not here.
  const uint8_t* Find(int64_t row);
  // Copies the row's bytes in, unless it is here already.
  void Insert(int64_t row, const uint8_t* bytes);

  int64_t capacity() const { return capacity_; }  // rows
  int64_t size() const { return static_cast<int64_t>(places_.size()); }

 private:
  struct Place {
    int64_t row;
    bool was_found;
  };

  // Where the next row goes; its former row is forgotten.
  int64_t TakePlace();
  uint8_t* Data(int64_t place) const {
    return blocks_[place / kBlockRows].get() + place % kBlockRows * row_bytes_;
  }

  static constexpr int64_t kBlockRows = 4096;

  const int64_t row_bytes_;
  const int64_t capacity_;
  absl::flat_hash_map<int64_t, int64_t> index_;     // row -> place
  std::vector<Place> places_;                       // at most capacity_
  std::vector<std::unique_ptr<uint8_t[]>> blocks_;  // grown as places are
  int64_t hand_ = 0;
};

}  // namespace warpline
