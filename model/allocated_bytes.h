// How much memory a buffer takes that a back end allocates.
#pragma once

#include <cstdint>

namespace warpline {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Buffers of at least one huge page come in whole ones.
inline int64_t AllocatedBytes(int64_t bytes) {
  if (bytes < kHugePageBytes) return bytes;
  return (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

}  // namespace warpline
