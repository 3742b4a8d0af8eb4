#include "client/cli/bench_tokens.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "model/tokenizer_vocabulary.h"

namespace warpline {

absl::StatusOr<std::vector<int32_t>> OrdinaryTokens(const GgufFile& file) {
  WL_ASSIGN_OR_RETURN(const Vocabulary vocabulary, LoadVocabulary(file));
  std::vector<int32_t> ids;
  if (vocabulary.kind == TokenizerKind::kNone) return ids;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.types[id] == TokenType::kNormal && !vocabulary.ends_generation[id] &&
        id != vocabulary.bos_id) {
      ids.push_back(id);
    }
  }
  if (ids.empty()) return absl::InvalidArgumentError("the vocabulary has no ordinary tokens");
  return ids;
}

std::vector<int32_t> RandomPrompt(absl::Span<const int32_t> ids, int32_t vocab_size, int count,
                                  PromptKey key) {
  std::seed_seq seeds = {key.seed & 0xFFFFFFFF, key.seed >> 32, key.run, key.request};
  std::mt19937_64 random(seeds);
  std::vector<int32_t> prompt(static_cast<size_t>(count));
  for (int32_t& id : prompt) {
    id = ids.empty() ? static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size))
                     : ids[random() % ids.size()];
  }
  return prompt;
}

std::string CompletionBody(absl::Span<const int32_t> prompt, int max_tokens) {
  return absl::StrCat(
      R"({"stream":true,"return_token_ids":true,"ignore_eos":true,"cache_prompt":false,)",
      R"("temperature":0,"stream_options":{"include_usage":true},"max_tokens":)", max_tokens,
      R"(,"prompt":[)", absl::StrJoin(prompt, ","), "]}");
}

}  // namespace warpline
