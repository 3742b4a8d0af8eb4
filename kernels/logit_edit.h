// The arithmetic of one edit of a logit: one code for host and device, so that both get the same
// bits.
#pragma once

#include <math.h>

#include "kernels/backend.h"
#include "kernels/quant_decode_common.h"

namespace warpline {

// What a query says about all its edits.
struct LogitPenalties {
  float repetition = 1;
  float presence = 0;
  float frequency = 0;
};

// Sums stay finite, so that only a bias of -infinity can forbid a token.
WL_HOST_DEVICE inline float ClampToFinite(double logit) {
  constexpr float kLargest = 3.402823466e+38f;
  if (logit > kLargest) return kLargest;
  return logit < -kLargest ? -kLargest : static_cast<float>(logit);
}

// Rounded by itself: a device compiler would fuse it with the subtraction that follows.
WL_HOST_DEVICE inline double RoundedProduct(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

WL_HOST_DEVICE inline float EditedLogit(float logit, const LogitEdit& edit,
                                        const LogitPenalties& penalties) {
  if (edit.bias == -INFINITY || logit == -INFINITY) return -INFINITY;
  const float biased = ClampToFinite(static_cast<double>(logit) + edit.bias);
  if (edit.count == 0) return biased;
  const double repetition = penalties.repetition;
  const double scaled = biased > 0 ? biased / repetition : RoundedProduct(biased, repetition);
  return ClampToFinite(scaled - penalties.presence -
                       RoundedProduct(penalties.frequency, edit.count));
}

}  // namespace warpline
