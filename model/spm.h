// SPM ("llama"): pieces with scores, byte fallback, no words.
#pragma once

#include <vector>

#include "model/bpe_merge.h"
#include "model/tokenizer_text_model.h"
#include "model/tokenizer_vocabulary.h"

namespace warpline {

class SpmModel final : public TextModel {
 public:
  // `vocabulary` must outlive the model.
  explicit SpmModel(const Vocabulary& vocabulary);

  void Encode(absl::string_view fragment, std::vector<int32_t>* ids) const override;
  std::string BytesOf(absl::string_view token_text) const override;

 private:
  void AppendBytes(absl::string_view symbol, std::vector<int32_t>* ids) const;

  const Vocabulary& vocabulary_;
  std::vector<int32_t>
      ranks_;  // by token: its place among the scores, highest first; equal scores share one
  int32_t byte_tokens_[256] = {};  // -1 where there is none
  size_t longest_token_bytes_ = 0;
};

}  // namespace warpline
