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
  std::vector<MergeSymbol> symbols;  // the value is where the symbol begins
  symbols.reserve(text.size());
  for (size_t begin = 0; begin < text.size();
       begin += SymbolByteCount(static_cast<uint8_t>(text[begin]))) {
    symbols.push_back({.value = static_cast<int32_t>(begin)});
  }
  if (symbols.empty()) return;
  const auto text_up_to_next = [&text, &symbols](int32_t begin, int32_t next) {
    const size_t end = next < 0 ? text.size() : symbols[next].value;
    return absl::string_view(text).substr(begin, end - begin);
  };
  RankQueue queue;
  MergeSymbols(
      [this, &text_up_to_next](const MergeSymbol& left, const MergeSymbol& right) {
        const absl::string_view joined = text_up_to_next(left.value, right.next);
        const int32_t token =
            joined.size() > longest_token_bytes_ ? -1 : vocabulary_.FindPlain(joined);
        return token < 0 ? PairMerge{} : PairMerge{.rank = ranks_[token], .value = left.value};
      },
      &queue, &symbols);
  // Merging only ever makes tokens, so a symbol that is none is a single character.
  for (int32_t i = 0; i >= 0; i = symbols[i].next) {
    const absl::string_view symbol = text_up_to_next(symbols[i].value, symbols[i].next);
    if (const int32_t token = vocabulary_.FindPlain(symbol); token >= 0) {
      ids->push_back(token);
    } else {
      AppendBytes(symbol, ids);
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
