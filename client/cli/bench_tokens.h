// Random prompts of `warpline bench`: token ids that any text may have, different in every request.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/gguf.h"

namespace warpline {

// The ordinary tokens of a file's vocabulary: no control, unknown, byte or unused ones. Empty when
// it has no vocabulary. Errors: InvalidArgument.
absl::StatusOr<std::vector<int32_t>> OrdinaryTokens(const GgufFile& file);

// Which prompt of a whole bench.
struct PromptKey {
  uint64_t seed = 0;
  uint64_t run = 0;
  uint64_t request = 0;
};

// `count` ids out of `ids` (all below `vocab_size` when it is empty), the same for the same key.
std::vector<int32_t> RandomPrompt(absl::Span<const int32_t> ids, int32_t vocab_size, int count,
                                  PromptKey key);

// The body of a completion request: streamed, greedy, exactly `max_tokens` tokens, nothing reused.
std::string CompletionBody(absl::Span<const int32_t> prompt, int max_tokens);

}  // namespace warpline
