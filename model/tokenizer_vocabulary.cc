#include "model/tokenizer_vocabulary.h"

#include <cctype>
#include <cmath>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace warpline {
namespace {

constexpr size_t kMaxTokenBytes = 64 << 10;
// Of all special tokens together: the automaton that finds them takes twenty times as much.
constexpr size_t kMaxSpecialBytes = 4 << 20;

constexpr absl::string_view kPrefix = "tokenizer.ggml.";

std::string Key(absl::string_view name) { return absl::StrCat(kPrefix, name); }

template <typename... Parts>
absl::Status Refused(absl::string_view name, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(Key(name), ": ", parts...));
}

// How a token appears in messages: its id and a printable form of bounded length.
std::string Describe(int64_t id, absl::string_view text) {
  constexpr size_t kShownBytes = 60;
  return absl::StrCat("token ", id, " \"", absl::Utf8SafeCHexEscape(text.substr(0, kShownBytes)),
                      text.size() > kShownBytes ? "\"..." : "\"");
}

// Tokens that end generation wherever they occur, beside those that the keys name.
constexpr absl::string_view kEndTexts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response|>",
};

// Fill-in-the-middle tokens that end generation: the key, and the spellings to look for when it is
// absent.
struct FimToken {
  absl::string_view name;
  std::vector<absl::string_view> texts;
};

std::vector<FimToken> EndingFimTokens() {
  return {
      {"fim_pad_token_id", {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
      {"fim_rep_token_id", {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
      {"fim_sep_token_id", {"<|file_sep|>"}}};
}

// Special ids that nothing here uses; a value that is out of range still deserves a warning.
constexpr absl::string_view kUnusedIds[] = {
    "seperator_token_id", "padding_token_id", "cls_token_id",     "mask_token_id",
    "fim_pre_token_id",   "fim_suf_token_id", "fim_mid_token_id", "prefix_token_id",
    "suffix_token_id",    "middle_token_id",
};

class Loader {
 public:
  explicit Loader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<Vocabulary> Load() {
    WL_RETURN_IF_ERROR(ReadKind());
    if (vocabulary_.kind == TokenizerKind::kNone) return std::move(vocabulary_);
    WL_RETURN_IF_ERROR(ReadTokens());
    WL_RETURN_IF_ERROR(ReadTypes());
    WL_RETURN_IF_ERROR(ReadScores());
    WL_RETURN_IF_ERROR(ReadSpecialIds());
    WL_RETURN_IF_ERROR(ReadEndOfGeneration());
    WL_RETURN_IF_ERROR(CheckSpecialBytes());
    WL_RETURN_IF_ERROR(ReadSwitches());
    WL_RETURN_IF_ERROR(ReadSuppressed());
    return std::move(vocabulary_);
  }

 private:
  absl::Status ReadKind() {
    if (!file_.Has(Key("model"))) return Refused("model", "missing");
    WL_ASSIGN_OR_RETURN(const std::string model, file_.GetString(Key("model")));
    if (model == "none" || model == "no_vocab") return absl::OkStatus();
    if (model == "llama") {
      vocabulary_.kind = TokenizerKind::kSpm;
      return absl::OkStatus();
    }
    if (model != "gpt2") {
      return Refused("model", "\"", absl::Utf8SafeCHexEscape(model),
                     "\" is not supported; known are gpt2, llama, none, no_vocab");
    }
    vocabulary_.kind = TokenizerKind::kBpe;
    std::string pre = "default";
    if (file_.Has(Key("pre"))) {
      WL_ASSIGN_OR_RETURN(pre, file_.GetString(Key("pre")));
    }
    if (!FindPreTokenizer(pre, &vocabulary_.pre_tokenizer)) {
      return Refused("pre", "\"", absl::Utf8SafeCHexEscape(pre), "\" is not known; known are ",
                     KnownPreTokenizers());
    }
    vocabulary_.cleans_spaces = vocabulary_.pre_tokenizer.cleans_spaces;
    return absl::OkStatus();
  }

  absl::Status ReadTokens() {
    if (!file_.Has(Key("tokens"))) return Refused("tokens", "missing");
    WL_ASSIGN_OR_RETURN(const absl::Span<const std::string> tokens,
                        file_.GetStrings(Key("tokens")));
    if (tokens.empty()) return Refused("tokens", "the vocabulary is empty");
    vocabulary_.texts.assign(tokens.begin(), tokens.end());
    vocabulary_.ids.reserve(tokens.size());
    for (int32_t id = 0; id < vocabulary_.size(); ++id) {
      std::string& text = vocabulary_.texts[id];
      if (text.empty()) text = absl::StrCat("[EMPTY_", id, "]");
      if (text.size() > kMaxTokenBytes) {
        return Refused("tokens", Describe(id, text), " has ", text.size(), " bytes, at most ",
                       kMaxTokenBytes);
      }
      if (absl::StrContains(text, '\0'))
        return Refused("tokens", Describe(id, text), " contains a NUL");
      const auto [entry, added] = vocabulary_.ids.try_emplace(text, id);
      if (!added)
        return Refused("tokens", Describe(id, text), " has the text of token ", entry->second);
    }
    return absl::OkStatus();
  }

  absl::Status ReadTypes() {
    vocabulary_.types.assign(vocabulary_.texts.size(), TokenType::kNormal);
    if (!file_.Has(Key("token_type"))) return absl::OkStatus();
    WL_ASSIGN_OR_RETURN(const absl::Span<const int64_t> types, file_.GetInts(Key("token_type")));
    WL_RETURN_IF_ERROR(CheckLength("token_type", types.size()));
    for (int32_t id = 0; id < vocabulary_.size(); ++id) {
      const bool known = types[id] >= 1 && types[id] <= 6;
      vocabulary_.types[id] = known ? static_cast<TokenType>(types[id]) : TokenType::kUndefined;
      const std::string& text = vocabulary_.texts[id];
      if (vocabulary_.types[id] == TokenType::kByte && !IsByteText(text)) {
        return Refused("tokens", Describe(id, text), " is of type byte but not spelled <0xHH>");
      }
    }
    return absl::OkStatus();
  }

  static bool IsByteText(absl::string_view text) {
    return text.size() == 6 && absl::StartsWith(text, "<0x") && text[5] == '>' &&
           std::isxdigit(static_cast<unsigned char>(text[3])) &&
           std::isxdigit(static_cast<unsigned char>(text[4]));
  }

  absl::Status ReadScores() {
    vocabulary_.scores.assign(vocabulary_.texts.size(), 0.0f);
    if (!file_.Has(Key("scores"))) return absl::OkStatus();
    WL_ASSIGN_OR_RETURN(const absl::Span<const double> scores, file_.GetFloats(Key("scores")));
    WL_RETURN_IF_ERROR(CheckLength("scores", scores.size()));
    for (int32_t id = 0; id < vocabulary_.size(); ++id) {
      if (std::isnan(scores[id])) {
        return Refused("scores", Describe(id, vocabulary_.texts[id]),
                       " has a score that is no number");
      }
      vocabulary_.scores[id] = static_cast<float>(scores[id]);
    }
    return absl::OkStatus();
  }

  absl::Status CheckLength(absl::string_view name, size_t length) const {
    if (length >= vocabulary_.texts.size()) return absl::OkStatus();
    return Refused(name, length, " elements for ", vocabulary_.texts.size(), " tokens");
  }

  // The id that key `name` gives, `otherwise` when the key is absent, -1 with a warning when it is
  // out of range.
  absl::StatusOr<int32_t> ReadId(absl::string_view name, int32_t otherwise) {
    const std::string key = Key(name);
    if (!file_.Has(key)) return vocabulary_.Contains(otherwise) ? otherwise : -1;
    const absl::StatusOr<int64_t> value = file_.GetInt(key);
    if (!value.ok()) return value.status();
    if (*value >= 0 && *value < vocabulary_.size()) return static_cast<int32_t>(*value);
    vocabulary_.warnings.push_back(absl::StrCat(key, " is ", *value, ", outside the ",
                                                vocabulary_.size(), " tokens: taken as absent"));
    return -1;
  }

  absl::Status ReadSpecialIds() {
    const bool spm = vocabulary_.kind == TokenizerKind::kSpm;
    const int32_t default_bos = spm ? 1 : vocabulary_.pre_tokenizer.has_default_bos ? 11 : -1;
    WL_ASSIGN_OR_RETURN(vocabulary_.bos_id, ReadId("bos_token_id", default_bos));
    WL_ASSIGN_OR_RETURN(vocabulary_.eos_id, ReadId("eos_token_id", spm ? 2 : 11));
    WL_ASSIGN_OR_RETURN(vocabulary_.unknown_id, ReadId("unknown_token_id", spm ? 0 : -1));
    for (const absl::string_view name : kUnusedIds) {
      const absl::StatusOr<int32_t> id = ReadId(name, -1);
      if (!id.ok()) return id.status();
    }
    return absl::OkStatus();
  }

  // Found by its text, a token that ends generation counts as a control token whatever the file
  // says.
  void EndAt(absl::string_view text) {
    const auto found = vocabulary_.ids.find(text);
    if (found == vocabulary_.ids.end()) return;
    vocabulary_.ends_generation[found->second] = true;
    vocabulary_.types[found->second] = TokenType::kControl;
  }

  absl::Status ReadEndOfGeneration() {
    vocabulary_.ends_generation.assign(vocabulary_.texts.size(), false);
    for (const absl::string_view text : kEndTexts) EndAt(text);
    for (const FimToken& token : EndingFimTokens()) {
      WL_ASSIGN_OR_RETURN(const int32_t id, ReadId(token.name, -1));
      if (id >= 0) vocabulary_.ends_generation[id] = true;
      if (file_.Has(Key(token.name))) continue;
      for (const absl::string_view text : token.texts) EndAt(text);
    }
    WL_ASSIGN_OR_RETURN(const int32_t end_of_turn, ReadId("eot_token_id", -1));
    WL_ASSIGN_OR_RETURN(const int32_t end_of_message, ReadId("eom_token_id", -1));
    for (const int32_t id : {vocabulary_.eos_id, end_of_turn, end_of_message}) {
      if (id >= 0) vocabulary_.ends_generation[id] = true;
    }
    // Where these two exist, <|end|> only closes one message of several.
    const auto& ids = vocabulary_.ids;
    const auto end = ids.find("<|end|>");
    if (end != ids.end() && ids.contains("<|return|>") && ids.contains("<|call|>")) {
      vocabulary_.ends_generation[end->second] = false;
    }
    return absl::OkStatus();
  }

  absl::Status CheckSpecialBytes() const {
    size_t byte_count = 0;
    for (int32_t id = 0; id < vocabulary_.size(); ++id) {
      if (vocabulary_.IsSpecial(id)) byte_count += vocabulary_.texts[id].size();
    }
    if (byte_count <= kMaxSpecialBytes) return absl::OkStatus();
    return Refused("tokens", "special tokens have ", byte_count, " bytes, at most ",
                   kMaxSpecialBytes);
  }

  absl::StatusOr<bool> ReadSwitch(absl::string_view name, bool otherwise) const {
    if (!file_.Has(Key(name))) return otherwise;
    return file_.GetBool(Key(name));
  }

  absl::Status ReadSwitches() {
    const bool spm = vocabulary_.kind == TokenizerKind::kSpm;
    WL_ASSIGN_OR_RETURN(vocabulary_.adds_bos,
                        ReadSwitch("add_bos_token", spm || vocabulary_.pre_tokenizer.adds_bos));
    WL_ASSIGN_OR_RETURN(vocabulary_.adds_eos, ReadSwitch("add_eos_token", false));
    WL_ASSIGN_OR_RETURN(vocabulary_.space_prefix, ReadSwitch("add_space_prefix", true));
    vocabulary_.space_prefix = vocabulary_.space_prefix && spm;
    if (vocabulary_.adds_bos && vocabulary_.bos_id < 0) {
      vocabulary_.warnings.push_back(
          "the vocabulary asks for a bos token but has none: none is added");
      vocabulary_.adds_bos = false;
    }
    if (vocabulary_.adds_eos && vocabulary_.eos_id < 0) {
      vocabulary_.warnings.push_back(
          "the vocabulary asks for an eos token but has none: none is added");
      vocabulary_.adds_eos = false;
    }
    return absl::OkStatus();
  }

  absl::Status ReadSuppressed() {
    if (!file_.Has(Key("suppress_tokens"))) return absl::OkStatus();
    WL_ASSIGN_OR_RETURN(const absl::Span<const int64_t> ids, file_.GetInts(Key("suppress_tokens")));
    std::vector<bool> seen(static_cast<size_t>(vocabulary_.size()), false);
    for (const int64_t id : ids) {
      if (id < 0 || id >= vocabulary_.size() || seen[static_cast<size_t>(id)]) continue;
      seen[static_cast<size_t>(id)] = true;
      vocabulary_.suppressed_ids.push_back(static_cast<int32_t>(id));
    }
    return absl::OkStatus();
  }

  const GgufFile& file_;
  Vocabulary vocabulary_;
};

}  // namespace

int32_t Vocabulary::FindPlain(absl::string_view text) const {
  const auto found = ids.find(text);
  if (found == ids.end()) return -1;
  switch (types[found->second]) {
    case TokenType::kControl:
    case TokenType::kUnknown:
    case TokenType::kByte:
      return -1;
    case TokenType::kUserDefined:
      return IsBracketed(found->second) ? -1 : found->second;
    default:
      return found->second;
  }
}

bool Vocabulary::IsSpecial(int32_t id) const {
  return types[id] == TokenType::kControl || types[id] == TokenType::kUnknown ||
         types[id] == TokenType::kUserDefined;
}

bool Vocabulary::IsBracketed(int32_t id) const {
  const absl::string_view text = texts[id];
  return (text.front() == '<' && text.back() == '>') || (text.front() == '[' && text.back() == ']');
}

absl::StatusOr<Vocabulary> LoadVocabulary(const GgufFile& file) { return Loader(file).Load(); }

}  // namespace warpline
