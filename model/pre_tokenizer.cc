#include "model/pre_tokenizer.h"

#include "absl/strings/str_cat.h"
#include "model/unicode.h"

namespace warpline {
namespace {

struct Row {
  std::vector<absl::string_view> names;
  PreTokenizer meaning;
};

std::vector<Row> Table() {
  using P = SplitPattern;
  return {
      {{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "hunyuan", "solar-open", "grok-2"},
       {.patterns = {P::kQwen2}}},
      {{"megrez", "stablelm2"}, {.patterns = {P::kQwen2}, .cleans_spaces = true}},
      {{"qwen35"}, {.patterns = {P::kQwen35}}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano"},
       {.patterns = {P::kLlama3}, .ignore_merges = true, .adds_bos = true, .cleans_spaces = true}},
      {{"dbrx", "smaug-bpe"}, {.patterns = {P::kLlama3}, .cleans_spaces = true}},
      {{"glm4", "chatglm-bpe"},
       {.patterns = {P::kLlama3}, .has_default_bos = false, .cleans_spaces = true}},
      {{"smollm", "command-r"}, {.patterns = {P::kOneNumber, P::kGpt2}}},
      {{"starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"},
       {.patterns = {P::kOneNumber, P::kGpt2}, .cleans_spaces = true}},
      {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "a.x-4.0", "mellum", "modern-bert",
        "exaone4", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de"},
       {.patterns = {P::kGpt2}, .cleans_spaces = true}},
      {{"trillion", "granite-docling"}, {.patterns = {P::kGpt2}}},
      {{"tekken"}, {.patterns = {P::kTekken}, .ignore_merges = true, .adds_bos = true}},
      {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, {.patterns = {P::kGpt4o}}},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm"},
       {.patterns = {P::kUpToThreeNumbers, P::kCjkRun, P::kDeepSeek3}}},
      {{"falcon"},
       {.patterns = {P::kPunctuationTickRun, P::kGpt2, P::kThreeDigits}, .cleans_spaces = true}},
      {{"default"},
       {.patterns = {P::kPunctuationRun, P::kGpt2, P::kNumberRun, P::kThreeDigits},
        .cleans_spaces = true}},
  };
}

bool IsNewline(char32_t code) { return code == '\r' || code == '\n'; }
bool IsAsciiLower(char32_t code) { return code >= 'a' && code <= 'z'; }
bool IsAsciiUpper(char32_t code) { return code >= 'A' && code <= 'Z'; }

// One piece of the text, and what matches in it. Every method named Match* takes a position before
// the end and returns the end of its match there, or the position itself when it does not match.
class Piece {
 public:
  Piece(const char32_t* codes, const uint8_t* classes, size_t end)
      : codes_(codes), classes_(classes), end_(end) {}

  size_t Match(SplitPattern pattern, size_t at) const {
    switch (pattern) {
      case SplitPattern::kQwen2:
        return MatchQwen2(at);
      case SplitPattern::kQwen35:
        return MatchQwen35(at);
      case SplitPattern::kLlama3:
        return MatchLlama3(at);
      case SplitPattern::kGpt2:
        return MatchGpt2(at);
      case SplitPattern::kTekken:
        return MatchTekken(at);
      case SplitPattern::kGpt4o:
        return MatchGpt4o(at);
      case SplitPattern::kDeepSeek3:
        return MatchDeepSeek3(at);
      case SplitPattern::kCjkRun:
        return RunOf(at, [this](size_t i) { return IsCjk(codes_[i]); });
      case SplitPattern::kOneNumber:
        return MatchNumbers(at, 1);
      case SplitPattern::kUpToThreeNumbers:
        return MatchNumbers(at, 3);
      case SplitPattern::kNumberRun:
        return RunOfClass(at, kNumber);
      case SplitPattern::kThreeDigits:
        return MatchThreeDigits(at);
      case SplitPattern::kPunctuationRun:
        return RunOf(at, [this](size_t i) { return IsDefaultPunctuation(i); });
      case SplitPattern::kPunctuationTickRun:
        return RunOf(at, [this](size_t i) { return IsDefaultPunctuation(i) || codes_[i] == '`'; });
    }
    return at;
  }

 private:
  bool Is(size_t i, uint8_t classes) const { return (classes_[i] & classes) != 0; }

  template <typename Predicate>
  size_t RunOf(size_t at, Predicate belongs) const {
    while (at < end_ && belongs(at)) ++at;
    return at;
  }
  size_t RunOfClass(size_t at, uint8_t classes) const {
    return RunOf(at, [this, classes](size_t i) { return Is(i, classes); });
  }
  size_t RunOfNewlines(size_t at) const {
    return RunOf(at, [this](size_t i) { return IsNewline(codes_[i]); });
  }

  static bool IsCjk(char32_t code) {
    return (code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF);
  }
  bool IsDefaultPunctuation(size_t i) const {
    if (Is(i, kPunctuation)) return true;
    constexpr absl::string_view kSymbols = "$+<=>^~|";
    return codes_[i] < 0x80 && kSymbols.find(static_cast<char>(codes_[i])) != kSymbols.npos;
  }

  // 's 't 're 've 'm 'll 'd
  size_t MatchContraction(size_t at, bool any_case) const {
    if (codes_[at] != '\'' || at + 1 >= end_) return at;
    const auto letter = [this, any_case](size_t i) {
      const char32_t code = codes_[i];
      return any_case && IsAsciiUpper(code) ? code + ('a' - 'A') : code;
    };
    const char32_t first = letter(at + 1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if (at + 2 >= end_) return at;
    const char32_t second = letter(at + 2);
    const bool matches = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                         (first == 'l' && second == 'l');
    return matches ? at + 3 : at;
  }

  // [^\r\n<excluded>]?[<word>]+ where whatever is not in `word` may be the first character. A first
  // character that is itself in `word` begins the run, which gives the same match.
  size_t MatchPrefixedWord(size_t at, uint8_t excluded, uint8_t word) const {
    if (Is(at, word)) return RunOfClass(at, word);
    if (Is(at, excluded) || IsNewline(codes_[at])) return at;
    const size_t end = RunOfClass(at + 1, word);
    return end > at + 1 ? end : at;
  }

  size_t MatchNumbers(size_t at, size_t most) const {
    const size_t begin = at;
    while (at < end_ && at - begin < most && Is(at, kNumber)) ++at;
    return at;
  }

  size_t MatchThreeDigits(size_t at) const {
    if (end_ - at < 3) return at;
    for (size_t i = at; i < at + 3; ++i) {
      if (codes_[i] < '0' || codes_[i] > '9') return at;
    }
    return at + 3;
  }

  //  ?[<belongs>]+
  template <typename Predicate>
  size_t MatchSpacedRun(size_t at, Predicate belongs) const {
    const size_t begin = codes_[at] == ' ' ? at + 1 : at;
    const size_t end = RunOf(begin, belongs);
    return end > begin ? end : at;
  }

  //  ?[^\s<others>]+ and then newlines, and slashes where asked for
  size_t MatchOthers(size_t at, uint8_t others, bool slashes) const {
    const uint8_t excluded = kWhiteSpace | others;
    const size_t end = MatchSpacedRun(at, [this, excluded](size_t i) { return !Is(i, excluded); });
    if (end == at) return at;
    return RunOf(end, [this, slashes](size_t i) {
      return IsNewline(codes_[i]) || (slashes && codes_[i] == '/');
    });
  }

  // \s+(?!\S): white space, but the last of it is left to what follows.
  size_t MatchSpaceBeforeText(size_t at) const {
    const size_t end = RunOfClass(at, kWhiteSpace);
    if (end == end_ || end == at) return end;
    return end - 1;
  }

  // \s*[\r\n]+|\s+(?!\S)|\s+
  size_t MatchTail(size_t at) const {
    const size_t run_end = RunOfClass(at, kWhiteSpace);
    for (size_t i = run_end; i > at; --i) {
      if (IsNewline(codes_[i - 1])) return i;
    }
    const size_t end = MatchSpaceBeforeText(at);
    return end > at ? end : run_end;
  }

  size_t MatchQwen2(size_t at) const { return MatchWords(at, kLetter, 1); }
  size_t MatchQwen35(size_t at) const { return MatchWords(at, kLetter | kMark, 1); }
  size_t MatchLlama3(size_t at) const { return MatchWords(at, kLetter, 3); }

  size_t MatchWords(size_t at, uint8_t word, size_t most_numbers) const {
    size_t end = MatchContraction(at, /*any_case=*/true);
    if (end == at) end = MatchPrefixedWord(at, kLetter | kNumber, word);
    if (end == at) end = MatchNumbers(at, most_numbers);
    if (end == at) end = MatchOthers(at, word | kNumber, /*slashes=*/false);
    return end == at ? MatchTail(at) : end;
  }

  size_t MatchGpt2(size_t at) const {
    size_t end = MatchContraction(at, /*any_case=*/false);
    if (end == at) end = MatchSpacedRun(at, [this](size_t i) { return Is(i, kLetter); });
    if (end == at) end = MatchSpacedRun(at, [this](size_t i) { return Is(i, kNumber); });
    if (end == at)
      end =
          MatchSpacedRun(at, [this](size_t i) { return !Is(i, kWhiteSpace | kLetter | kNumber); });
    return end == at ? MatchSpaceBeforeText(at) : end;
  }

  // Letters that are not ASCII lower case, then letters that are not ASCII upper case, of the
  // latter at least one; or the same with at least one of the former. Letters outside ASCII are
  // both.
  size_t MatchCasedWord(size_t at) const {
    size_t begin = at;
    if (!Is(at, kLetter | kNumber) && !IsNewline(codes_[at])) ++begin;
    const size_t upper_end =
        RunOf(begin, [this](size_t i) { return Is(i, kLetter) && !IsAsciiLower(codes_[i]); });
    const size_t lower_end =
        RunOf(upper_end, [this](size_t i) { return Is(i, kLetter) && !IsAsciiUpper(codes_[i]); });
    if (lower_end > upper_end) return lower_end;
    // The first form gives characters back until the last of the run can be its lower part.
    for (size_t i = upper_end; i > begin; --i) {
      if (!IsAsciiUpper(codes_[i - 1])) return i;
    }
    return upper_end > begin ? upper_end : at;
  }

  size_t MatchCasedText(size_t at, bool contractions, size_t most_numbers) const {
    size_t end = MatchCasedWord(at);
    if (end > at)
      return contractions && end < end_ ? MatchContraction(end, /*any_case=*/true) : end;
    end = MatchNumbers(at, most_numbers);
    if (end == at) end = MatchOthers(at, kLetter | kNumber, /*slashes=*/true);
    return end == at ? MatchTail(at) : end;
  }
  size_t MatchTekken(size_t at) const { return MatchCasedText(at, /*contractions=*/false, 1); }
  size_t MatchGpt4o(size_t at) const { return MatchCasedText(at, /*contractions=*/true, 3); }

  static bool IsAsciiPunctuation(char32_t code) {
    return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') ||
           (code >= '[' && code <= '`') || (code >= '{' && code <= '~');
  }

  size_t MatchDeepSeek3(size_t at) const {
    if (IsAsciiPunctuation(codes_[at])) {
      const size_t end = RunOf(
          at + 1, [this](size_t i) { return IsAsciiLower(codes_[i]) || IsAsciiUpper(codes_[i]); });
      if (end > at + 1) return end;
    }
    size_t end = MatchPrefixedWord(at, kLetter | kPunctuation | kSymbol, kLetter | kMark);
    if (end > at) return end;
    end = MatchSpacedRun(at, [this](size_t i) { return Is(i, kPunctuation | kSymbol); });
    return end > at ? RunOfNewlines(end) : MatchTail(at);
  }

  const char32_t* codes_;
  const uint8_t* classes_;
  size_t end_;
};

}  // namespace

bool FindPreTokenizer(absl::string_view name, PreTokenizer* found) {
  for (const Row& row : Table()) {
    for (const absl::string_view known : row.names) {
      if (known == name) {
        *found = row.meaning;
        return true;
      }
    }
  }
  return false;
}

std::string KnownPreTokenizers() {
  std::string names;
  for (const Row& row : Table()) {
    for (const absl::string_view name : row.names)
      absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  }
  return names;
}

std::vector<uint32_t> SplitIntoWords(const PreTokenizer& pre_tokenizer,
                                     absl::Span<const char32_t> text) {
  std::vector<uint8_t> classes(text.size());
  for (size_t i = 0; i < text.size(); ++i) classes[i] = CharacterClassOf(text[i]);
  std::vector<uint32_t> ends;
  if (!text.empty()) ends.push_back(static_cast<uint32_t>(text.size()));
  for (const SplitPattern pattern : pre_tokenizer.patterns) {
    std::vector<uint32_t> finer;
    size_t word_begin = 0;
    for (const uint32_t piece_end : ends) {
      const Piece piece(text.data(), classes.data(), piece_end);
      for (size_t at = word_begin; at < piece_end;) {
        const size_t match_end = piece.Match(pattern, at);
        if (match_end == at) {
          ++at;
          continue;
        }
        if (at > word_begin) finer.push_back(static_cast<uint32_t>(at));
        finer.push_back(static_cast<uint32_t>(match_end));
        at = word_begin = match_end;
      }
      if (piece_end > word_begin) finer.push_back(piece_end);
      word_begin = piece_end;
    }
    ends = std::move(finer);
  }
  return ends;
}

}  // namespace warpline
