#include "model/spm.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace warpline {
namespace {

constexpr absl::string_view kSpaceMark = "\u2581";

// Bytes of the character that begins with `lead`; damaged text is cut the same way.
size_t SymbolByteCount(uint8_t lead) {
  return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

}  // namespace

SpmModel::SpmModel(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {
  std::vector<float> scores = vocabulary.scores;
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const auto place =
        std::lower_bound(scores.begin(), scores.end(), vocabulary.scores[id], std::greater<>());
    ranks_.push_back(static_cast<int32_t>(place - scores.begin()));
    longest_token_bytes_ = std::max(longest_token_bytes_, vocabulary.texts[id].size());
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto named = vocabulary.ids.find(absl::StrFormat("<0x%02X>", byte));
    const char letter = static_cast<char>(byte);
    byte_tokens_[byte] = named != vocabulary.ids.end()
                             ? named->second
                             : vocabulary.FindPlain(absl::string_view(&letter, 1));
  }
}

void SpmModel::Encode(absl::string_view fragment, std::vector<int32_t>* ids) const {
  const std::string text = absl::StrCat(vocabulary_.space_prefix ? kSpaceMark : absl::string_view(),
                                        absl::StrReplaceAll(fragment, {{" ", kSpaceMark}}));
  std::vector<MergeSymbol> symbols;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end =
        std::min(text.size(), begin + SymbolByteCount(static_cast<uint8_t>(text[begin])));
    symbols.push_back(
        {.piece = vocabulary_.FindPlain(absl::string_view(text).substr(begin, end - begin)),
         .begin = static_cast<uint32_t>(begin),
         .end = static_cast<uint32_t>(end)});
    begin = end;
  }
  if (symbols.empty()) return;
  RankQueue queue;
  MergeSymbols(
      [this, &text](const MergeSymbol& left, const MergeSymbol& right) {
        const size_t byte_count = right.end - left.begin;
        if (byte_count > longest_token_bytes_) return PairMerge{};
        const int32_t token =
            vocabulary_.FindPlain(absl::string_view(text).substr(left.begin, byte_count));
        return token < 0 ? PairMerge{} : PairMerge{.rank = ranks_[token], .piece = token};
      },
      &queue, &symbols);
  // Merging only ever makes tokens, so a symbol that is none is a single character.
  for (int32_t i = 0; i >= 0; i = symbols[i].next) {
    const MergeSymbol& symbol = symbols[i];
    if (symbol.piece >= 0) {
      ids->push_back(symbol.piece);
    } else {
      AppendBytes(absl::string_view(text).substr(symbol.begin, symbol.end - symbol.begin), ids);
    }
  }
}

void SpmModel::AppendBytes(absl::string_view symbol, std::vector<int32_t>* ids) const {
  for (const char letter : symbol) {
    const int32_t token = byte_tokens_[static_cast<uint8_t>(letter)];
    if (token >= 0) {
      ids->push_back(token);
    } else if (vocabulary_.unknown_id >= 0) {
      ids->push_back(vocabulary_.unknown_id);
    }
  }
}

std::string SpmModel::BytesOf(absl::string_view token_text) const {
  return absl::StrReplaceAll(token_text, {{kSpaceMark, " "}});
}

}  // namespace warpline
