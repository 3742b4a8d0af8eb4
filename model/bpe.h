// Byte-level BPE ("gpt2").
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/bpe_merge.h"
#include "model/tokenizer_text_model.h"
#include "model/tokenizer_vocabulary.h"

namespace warpline {

class BpeModel final : public TextModel {
 public:
  // `vocabulary` must outlive the model. `merges` are "left right" with the rank as index. Errors:
  // InvalidArgument naming the merge.
  static absl::StatusOr<std::unique_ptr<BpeModel>> Create(const Vocabulary& vocabulary,
                                                          absl::Span<const std::string> merges);

  void Encode(absl::string_view fragment, std::vector<int32_t>* ids) const override;
  std::string BytesOf(absl::string_view token_text) const override;

 private:
  class Interner;
  struct Scratch;

  explicit BpeModel(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  void EncodeWord(absl::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const;

  const Vocabulary& vocabulary_;
  // A piece is a text that a symbol can have: numbered, so that merging compares numbers.
  int32_t byte_pieces_[256] = {};
  std::vector<int32_t> piece_tokens_;  // by piece; -1 where no token has its text
  // What a piece without a token becomes: the tokens of its single bytes, where there are any.
  absl::flat_hash_map<int32_t, std::vector<int32_t>> piece_fallbacks_;
  absl::flat_hash_map<std::pair<int32_t, int32_t>, PairMerge> merges_;  // by left and right piece
};

}  // namespace warpline
