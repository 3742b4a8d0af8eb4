#include "model/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/bpe.h"
#include "model/special_tokens.h"
#include "model/spm.h"
#include "model/tokenizer_clean_spaces.h"
#include "model/tokenizer_text_model.h"
#include "model/tokenizer_vocabulary.h"

namespace warpline {
namespace {

// `allowed` as SpecialTokens::Find wants it.
using Allowed = absl::FunctionRef<bool(int32_t id, size_t begin, size_t end)>;

class GgufTokenizer final : public Tokenizer {
 public:
  explicit GgufTokenizer(Vocabulary vocabulary)
      : vocabulary_(std::move(vocabulary)), special_tokens_(vocabulary_) {}

  // Before this call the tokenizer has no model for plain text.
  absl::Status MakeModel(const GgufFile& file);

  bool has_vocabulary() const override { return vocabulary_.kind != TokenizerKind::kNone; }
  int32_t vocab_size() const override { return vocabulary_.size(); }
  std::vector<int32_t> Encode(absl::string_view text, const EncodeOptions& options) const override;
  std::vector<int32_t> EncodeChat(const TrustedText& text) const override;
  std::string Decode(absl::Span<const int32_t> ids, const DecodeOptions& options) const override;
  std::string TokenBytes(int32_t id, bool show_special) const override;
  bool strips_leading_space() const override { return vocabulary_.space_prefix; }
  bool IsEndOfGeneration(int32_t id) const override {
    return vocabulary_.Contains(id) && vocabulary_.ends_generation[id];
  }
  absl::Span<const int32_t> suppressed_ids() const override { return vocabulary_.suppressed_ids; }
  int32_t bos_id() const override { return vocabulary_.bos_id; }
  int32_t eos_id() const override { return vocabulary_.eos_id; }
  bool adds_bos() const override { return vocabulary_.adds_bos; }
  std::string TokenText(int32_t id) const override {
    return vocabulary_.Contains(id) ? vocabulary_.texts[id] : std::string();
  }
  absl::Span<const std::string> warnings() const override { return vocabulary_.warnings; }

 private:
  std::vector<int32_t> EncodeWith(absl::string_view text, Allowed allowed) const;

  const Vocabulary vocabulary_;
  const SpecialTokens special_tokens_;
  std::unique_ptr<TextModel> model_;  // null without a vocabulary
};

absl::Status GgufTokenizer::MakeModel(const GgufFile& file) {
  if (vocabulary_.kind == TokenizerKind::kSpm) {
    model_ = std::make_unique<SpmModel>(vocabulary_);
  } else if (vocabulary_.kind == TokenizerKind::kBpe) {
    constexpr absl::string_view kMergesKey = "tokenizer.ggml.merges";
    if (!file.Has(kMergesKey))
      return absl::InvalidArgumentError(absl::StrCat(kMergesKey, ": missing"));
    WL_ASSIGN_OR_RETURN(const absl::Span<const std::string> merges, file.GetStrings(kMergesKey));
    WL_ASSIGN_OR_RETURN(model_, BpeModel::Create(vocabulary_, merges));
  }
  return absl::OkStatus();
}

std::vector<int32_t> GgufTokenizer::EncodeWith(absl::string_view text, Allowed allowed) const {
  std::vector<int32_t> ids;
  size_t at = 0;
  for (const SpecialMatch& match : special_tokens_.Find(text, allowed)) {
    if (match.begin > at) model_->Encode(text.substr(at, match.begin - at), &ids);
    ids.push_back(match.id);
    at = match.end;
  }
  if (at < text.size()) model_->Encode(text.substr(at), &ids);
  return ids;
}

std::vector<int32_t> GgufTokenizer::Encode(absl::string_view text,
                                           const EncodeOptions& options) const {
  if (model_ == nullptr) return {};
  std::vector<int32_t> ids = EncodeWith(text, [this, &options](int32_t id, size_t, size_t) {
    return options.parse_special || vocabulary_.types[id] == TokenType::kUserDefined;
  });
  if (options.add_special && vocabulary_.adds_bos) ids.insert(ids.begin(), vocabulary_.bos_id);
  if (options.add_special && vocabulary_.adds_eos) ids.push_back(vocabulary_.eos_id);
  return ids;
}

std::vector<int32_t> GgufTokenizer::EncodeChat(const TrustedText& text) const {
  if (model_ == nullptr) return {};
  std::vector<int32_t> ids =
      EncodeWith(text.text, [this, &text](int32_t id, size_t begin, size_t end) {
        if (vocabulary_.types[id] == TokenType::kUserDefined && !vocabulary_.IsBracketed(id))
          return true;
        const auto range =
            std::upper_bound(text.trusted.begin(), text.trusted.end(), begin,
                             [](size_t at, const TextRange& r) { return at < r.begin; });
        return range != text.trusted.begin() && end <= std::prev(range)->end;
      });
  const bool begins_with_bos = !ids.empty() && ids.front() == vocabulary_.bos_id;
  if (vocabulary_.adds_bos && !begins_with_bos) ids.insert(ids.begin(), vocabulary_.bos_id);
  return ids;
}

std::string GgufTokenizer::TokenBytes(int32_t id, bool show_special) const {
  if (!vocabulary_.Contains(id)) return "";
  const std::string& text = vocabulary_.texts[id];
  switch (vocabulary_.types[id]) {
    case TokenType::kControl:
    case TokenType::kUnknown:
      return show_special ? text : "";
    case TokenType::kUserDefined:
      return text;
    case TokenType::kNormal:
      return model_->BytesOf(text);
    case TokenType::kByte: {
      uint32_t byte = 0;
      WL_CHECK(
          absl::SimpleHexAtoi(text.substr(3, 2), &byte));  // the loader refuses other spellings
      return std::string(1, static_cast<char>(byte));
    }
    case TokenType::kUnused:
    case TokenType::kUndefined:
      return "";
  }
  return "";
}

std::string GgufTokenizer::Decode(absl::Span<const int32_t> ids,
                                  const DecodeOptions& options) const {
  bool strip_space = strips_leading_space();
  if (options.remove_special && vocabulary_.adds_bos && !ids.empty() &&
      ids.front() == vocabulary_.bos_id) {
    ids.remove_prefix(1);
    strip_space = false;  // encoding put the space after a bos only where the text had one
  }
  if (options.remove_special && vocabulary_.adds_eos && !ids.empty() &&
      ids.back() == vocabulary_.eos_id) {
    ids.remove_suffix(1);
  }
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    std::string bytes = TokenBytes(ids[i], options.unparse_special);
    if (i == 0 && strip_space && !bytes.empty() && bytes.front() == ' ') bytes.erase(0, 1);
    text += bytes;
  }
  return vocabulary_.cleans_spaces ? CleanSpaces(text) : text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const GgufFile& file) {
  WL_ASSIGN_OR_RETURN(Vocabulary vocabulary, LoadVocabulary(file));
  auto tokenizer = std::make_unique<GgufTokenizer>(std::move(vocabulary));
  WL_RETURN_IF_ERROR(tokenizer->MakeModel(file));
  return tokenizer;
}

}  // namespace warpline
