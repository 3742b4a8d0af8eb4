// The check for values that no sound computation gives.
#pragma once

#include <cstdint>
#include <cstring>

#include "absl/types/span.h"

namespace warpline {

// True when one of `values` is NaN or infinite. No early exit: the compiler vectorises this.
inline bool HasNonFinite(absl::Span<const float> values) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t found = 0;
  for (const float& value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    found |= static_cast<uint32_t>((bits & kExponent) == kExponent);
  }
  return found != 0;
}

}  // namespace warpline
