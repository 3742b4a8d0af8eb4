// How the next token is chosen: sent once, when a sequence opens.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace warpline {

struct SamplingParams {
  float temperature = 1;  // 0: greedy
  int32_t top_k = 0;      // 0: off
  float top_p = 1;        // 1: off
  float min_p = 0;        // 0: off
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int32_t penalty_window = 64;  // the last n tokens, prompt included; -1: all
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // token id, added to its logit; -inf forbids
};

}  // namespace warpline
