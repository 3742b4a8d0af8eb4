#include "model/bpe.h"

#include <array>
#include <deque>

#include "absl/memory/memory.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"

namespace warpline {
namespace {

// The printable characters that stand for bytes in token texts: visible Latin-1 characters for
// themselves, the other bytes in ascending order for U+0100 and up.
constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

constexpr std::array<char16_t, 256> MakeByteAlphabet() {
  std::array<char16_t, 256> alphabet{};
  char16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    alphabet[byte] = StandsForItself(byte) ? static_cast<char16_t>(byte) : next++;
  }
  return alphabet;
}

constexpr std::array<char16_t, 256> kByteAlphabet = MakeByteAlphabet();
constexpr int kAlphabetEnd = 0x144;

// The inverse; -1 outside the alphabet.
constexpr std::array<int16_t, kAlphabetEnd> MakeAlphabetBytes() {
  std::array<int16_t, kAlphabetEnd> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (int16_t byte = 0; byte < 256; ++byte) bytes[kByteAlphabet[byte]] = byte;
  return bytes;
}

constexpr std::array<int16_t, kAlphabetEnd> kAlphabetBytes = MakeAlphabetBytes();

}  // namespace

// Numbers texts while the merges are read.
class BpeModel::Interner {
 public:
  Interner(const Vocabulary& vocabulary, BpeModel* model)
      : vocabulary_(vocabulary), model_(*model) {}

  int32_t PieceOf(const std::string& text) {
    if (const auto known = pieces_.find(text); known != pieces_.end()) return known->second;
    const int32_t piece = static_cast<int32_t>(model_.piece_tokens_.size());
    const int32_t token = vocabulary_.FindPlain(text);
    model_.piece_tokens_.push_back(token);
    if (token >= 0) {
      pieces_.emplace(vocabulary_.texts[token], piece);
    } else {
      pieces_.emplace(owned_texts_.emplace_back(text), piece);
      std::vector<int32_t> fallback;
      for (const char& letter : text) {
        const int32_t byte_token = vocabulary_.FindPlain(absl::string_view(&letter, 1));
        if (byte_token >= 0) fallback.push_back(byte_token);
      }
      if (!fallback.empty()) model_.piece_fallbacks_.emplace(piece, std::move(fallback));
    }
    return piece;
  }

 private:
  const Vocabulary& vocabulary_;
  BpeModel& model_;
  std::deque<std::string> owned_texts_;  // of pieces that are no tokens
  absl::flat_hash_map<absl::string_view, int32_t> pieces_;
};

// Buffers that one call uses for all of its words.
struct BpeModel::Scratch {
  std::string mapped;
  std::vector<MergeSymbol> symbols;
  RankQueue queue;
};

absl::StatusOr<std::unique_ptr<BpeModel>> BpeModel::Create(const Vocabulary& vocabulary,
                                                           absl::Span<const std::string> merges) {
  auto model = absl::WrapUnique(new BpeModel(vocabulary));
  Interner interner(vocabulary, model.get());
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    AppendUtf8(kByteAlphabet[byte], &text);
    model->byte_pieces_[byte] = interner.PieceOf(text);
  }
  model->merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& merge = merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos || space + 1 == merge.size()) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.merges: element ", rank, " \"",
                                                     absl::Utf8SafeCHexEscape(merge.substr(0, 60)),
                                                     "\" is no pair"));
    }
    const std::string left = merge.substr(0, space);
    const std::string right = merge.substr(space + 1);
    const std::pair<int32_t, int32_t> pair(interner.PieceOf(left), interner.PieceOf(right));
    // A pair that occurs twice keeps its first rank.
    model->merges_.try_emplace(pair, PairMerge{.rank = static_cast<int32_t>(rank),
                                               .value = interner.PieceOf(left + right)});
  }
  return model;
}

void BpeModel::Encode(absl::string_view fragment, std::vector<int32_t>* ids) const {
  std::u32string codes;
  std::string text;  // the fragment with its damaged bytes replaced
  codes.reserve(fragment.size());
  text.reserve(fragment.size());
  for (absl::string_view rest = fragment; !rest.empty();) {
    const Utf8Character next = DecodeUtf8(rest);
    codes.push_back(next.code);
    AppendUtf8(next.code, &text);
    // Each byte of a sequence that the end cuts is a damaged byte of its own.
    rest.remove_prefix(next.state == Utf8State::kComplete ? next.byte_count : 1);
  }
  Scratch scratch;
  size_t code_at = 0;
  size_t byte_at = 0;
  for (const uint32_t end : SplitIntoWords(vocabulary_.pre_tokenizer, codes)) {
    const size_t begin = byte_at;
    for (; code_at < end; ++code_at) byte_at += Utf8ByteCount(codes[code_at]);
    EncodeWord(absl::string_view(text).substr(begin, byte_at - begin), &scratch, ids);
  }
}

void BpeModel::EncodeWord(absl::string_view word, Scratch* scratch,
                          std::vector<int32_t>* ids) const {
  if (vocabulary_.pre_tokenizer.ignore_merges) {
    scratch->mapped.clear();
    for (const char letter : word)
      AppendUtf8(kByteAlphabet[static_cast<uint8_t>(letter)], &scratch->mapped);
    if (const int32_t token = vocabulary_.FindPlain(scratch->mapped); token >= 0) {
      ids->push_back(token);
      return;
    }
  }
  std::vector<MergeSymbol>& symbols = scratch->symbols;
  symbols.clear();
  symbols.reserve(word.size());
  for (const char letter : word)
    symbols.push_back({.value = byte_pieces_[static_cast<uint8_t>(letter)]});
  MergeSymbols(
      [this](const MergeSymbol& left, const MergeSymbol& right) {
        const auto merge = merges_.find({left.value, right.value});
        return merge == merges_.end() ? PairMerge{} : merge->second;
      },
      &scratch->queue, &symbols);
  for (int32_t i = 0; i >= 0; i = symbols[i].next) {
    const int32_t token = piece_tokens_[symbols[i].value];
    if (token >= 0) {
      ids->push_back(token);
    } else if (const auto found = piece_fallbacks_.find(symbols[i].value);
               found != piece_fallbacks_.end()) {
      ids->insert(ids->end(), found->second.begin(), found->second.end());
    }
  }
}

std::string BpeModel::BytesOf(absl::string_view token_text) const {
  std::string bytes;
  while (!token_text.empty()) {
    const Utf8Character next = DecodeUtf8(token_text);
    const bool mapped = next.state == Utf8State::kComplete && next.code < kAlphabetEnd &&
                        kAlphabetBytes[next.code] >= 0;
    // A character outside the alphabet stands for itself.
    if (mapped) {
      bytes.push_back(static_cast<char>(kAlphabetBytes[next.code]));
    } else {
      bytes.append(token_text.data(), next.byte_count);
    }
    token_text.remove_prefix(next.byte_count);
  }
  return bytes;
}

}  // namespace warpline
