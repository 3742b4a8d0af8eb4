// Which KV slots and pages are free. The numbers are the same on all stages.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace warpline {

constexpr int64_t kPageTokens = 64;  // Tokens of a KV page; part of the protocol with the workers.

// Pages that hold `token_count` tokens.
constexpr int64_t PagesFor(int64_t token_count) {
  return (token_count + kPageTokens - 1) / kPageTokens;
}

struct SlotGrant {
  int kv_slot = 0;
  uint32_t generation = 0;  // Never the same twice for one slot, also after a restart of stages.
};

// Owned and used by the engine thread. Broken calls (twice freed, more than is free) end the
// process.
class CacheAllocator {
 public:
  CacheAllocator(int slot_count, int64_t page_count);

  bool CanTake(int64_t page_count) const {
    return !free_slots_.empty() && page_count <= free_pages();
  }
  // The lowest free slot, with its next generation.
  SlotGrant TakeSlot();
  // `count` page ids, lowest first.
  std::vector<uint32_t> TakePages(int64_t count);
  void Return(int kv_slot, absl::Span<const uint32_t> pages);

  int slots_used() const { return slot_count() - static_cast<int>(free_slots_.size()); }
  int slot_count() const { return static_cast<int>(generations_.size()); }
  int64_t pages_used() const { return page_count() - free_pages(); }
  int64_t page_count() const { return static_cast<int64_t>(page_taken_.size()); }

 private:
  int64_t free_pages() const { return static_cast<int64_t>(free_pages_.size()); }

  std::vector<int> free_slots_;        // Descending: the lowest is taken from the back.
  std::vector<uint32_t> generations_;  // [slot_count], of the latest grant
  std::vector<uint32_t> free_pages_;   // Descending at first, then in the order of return.
  std::vector<bool> page_taken_;       // [page_count]
};

}  // namespace warpline
