// Figures of `warpline bench`: speeds from the arrivals of tokens, and what repeated runs say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cli/load_client.h"

namespace warpline {

// One measured speed: so many tokens in so many seconds.
struct Measurement {
  enum class Kind { kPrompt, kDecode };
  Kind kind = Kind::kPrompt;
  int size = 0;  // tokens of each prompt; for decoding the prompts before it
  int stream_count = 1;
  int64_t token_count = 0;     // within `seconds`
  int64_t received_count = 0;  // all that came
  double seconds = 0;

  double tokens_per_second() const { return static_cast<double>(token_count) / seconds; }
  // "prompt 4096", "prompt 4096 x4", "decode x8".
  std::string Name() const;
};

// All prompts, over the time from the first request to the last of the first tokens.
absl::StatusOr<Measurement> PromptSpeed(absl::Span<const TokenStream> streams, int prompt_tokens);
// Tokens over the span in which all streams generate: from the last of the first tokens to the
// first of the last ones. FailedPrecondition when there is no such span.
absl::StatusOr<Measurement> DecodeSpeed(absl::Span<const TokenStream> streams, int prompt_tokens);

struct Summary {
  double median = 0;
  double least = 0;
  double most = 0;
};

// Of at least one value.
Summary Summarize(std::vector<double> values);

}  // namespace warpline
