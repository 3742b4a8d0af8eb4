// One lane's share of a product with packed weights in single precision, for host and device: the
// slow and exact way, beside the tiles.
#pragma once

#include <stdint.h>

#include "kernels/cuda/half_math.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/weight_format.h"

namespace warpline::cuda {

// Adds to sums[0] and sums[1] what lane 4 * g + t (of 32) has of rows g and g + 8 of a row block:
// the sum over the four t is the row's product with x[0] to x[live - 1]; x beyond that counts as 0
// and is not read. `row_block` is where the row block starts, `k` its padded width.
template <QuantType kType>
WL_HOST_DEVICE void AddRowBlock(const uint8_t* row_block, int k, const float* x, int live,
                                const uint8_t* table, int lane, float (&sums)[2]) {
  using Format = WeightFormat<kType>;
  constexpr PackedShape kShape = Format::kShape;
  const int slices = k / (kShape.groups * kGroupK);
  for (int slice = 0; slice < slices; ++slice) {
    const auto registers =
        Format::Load(row_block + SliceOffset(kShape, slice),
                     row_block + SliceOffset(kShape, slice & ~1) + 2 * kShape.slice_bytes, lane);
    WL_UNROLL
    for (int group = 0; group < kShape.groups; ++group) {
      uint32_t step0[4];
      uint32_t step1[4];
      Format::Decode(registers, table, group, step0, step1);
      const int first = (slice * kShape.groups + group) * kGroupK + lane % 4 * 8;
      WL_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const int at = first + 2 * pair;
        const float low = at < live ? x[at] : 0;
        const float high = at + 1 < live ? x[at + 1] : 0;
        WL_UNROLL
        for (int h = 0; h < 2; ++h) {
          const uint32_t weights = FragmentOf(step0, step1, h, pair);
          sums[h] = FmaFloat(LowFloat(weights), low, sums[h]);
          sums[h] = FmaFloat(HighFloat(weights), high, sums[h]);
        }
      }
    }
  }
}

}  // namespace warpline::cuda
