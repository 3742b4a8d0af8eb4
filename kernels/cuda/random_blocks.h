// Random blocks of every tensor type, for checks of kernels: all codes, signs, indices and
// sub-scales are random, only the scales are computed, so that no value is infinite or NaN.
#pragma once

#include <cstdint>
#include <vector>

#include "model/quant.h"

namespace warpline::cuda {

// A small generator of reproducible numbers, the same on every machine.
class RandomBits {
 public:
  explicit RandomBits(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>((Next() >> 32) * bound >> 32); }
  // Nearly normal, mean 0, deviation 1, within +-3.5.
  float Normal();

 private:
  uint64_t state_;
};

// Blocks of `value_count` values (a multiple of the type's block) whose decoded values have about
// `deviation` as root mean square.
std::vector<uint8_t> RandomBlocks(QuantType type, int64_t value_count, uint64_t seed,
                                  float deviation);

}  // namespace warpline::cuda
