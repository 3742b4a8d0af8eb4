#include "coordinator/cache_allocator.h"

#include <algorithm>
#include <functional>

#include "base/status.h"

namespace warpline {

CacheAllocator::CacheAllocator(int slot_count, int64_t page_count)
    : generations_(slot_count, 0), page_taken_(page_count, false) {
  for (int slot = slot_count - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  for (int64_t page = page_count - 1; page >= 0; --page) {
    free_pages_.push_back(static_cast<uint32_t>(page));
  }
}

SlotGrant CacheAllocator::TakeSlot() {
  WL_CHECK(!free_slots_.empty());
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  return {.kv_slot = slot, .generation = ++generations_[slot]};
}

std::vector<uint32_t> CacheAllocator::TakePages(int64_t count) {
  WL_CHECK(count >= 0 && count <= free_pages());
  std::vector<uint32_t> pages(free_pages_.rbegin(), free_pages_.rbegin() + count);
  free_pages_.resize(free_pages_.size() - count);
  for (const uint32_t page : pages) page_taken_[page] = true;
  return pages;
}

void CacheAllocator::Return(int kv_slot, absl::Span<const uint32_t> pages) {
  const auto place =
      std::lower_bound(free_slots_.begin(), free_slots_.end(), kv_slot, std::greater<int>());
  WL_CHECK(place == free_slots_.end() || *place != kv_slot);
  free_slots_.insert(place, kv_slot);
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) {
    WL_CHECK(page_taken_[*page]);
    page_taken_[*page] = false;
    free_pages_.push_back(*page);
  }
}

}  // namespace warpline
