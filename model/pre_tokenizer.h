// Pre-tokenizers of byte-level BPE: how each `tokenizer.ggml.pre` cuts a text into words, by
// hand-written scanners that match what the regexes of section 3.2 (specs: tokenizers) match, in
// linear time and with a flat stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace warpline {

// One regex. A pre-tokenizer applies several, each to the pieces that the one before left.
enum class SplitPattern : uint8_t {
  kQwen2,
  kQwen35,
  kLlama3,
  kGpt2,
  kTekken,
  kGpt4o,
  kDeepSeek3,           // words, the third of DeepSeek's three
  kCjkRun,              // kana and unified ideographs
  kOneNumber,           // \p{N}
  kUpToThreeNumbers,    // \p{N}{1,3}
  kNumberRun,           // \p{N}+
  kThreeDigits,         // [0-9][0-9][0-9]
  kPunctuationRun,      // [\p{P}\$\+<=>\^~\|]+
  kPunctuationTickRun,  // the same with a back-tick
};

// What the name of a pre-tokenizer stands for.
struct PreTokenizer {
  std::vector<SplitPattern> patterns;
  bool ignore_merges = false;  // a word that is a token is taken whole
  bool adds_bos = false;       // default of add_bos_token
  bool has_default_bos = true;
  bool cleans_spaces = false;
};

// False when the name is unknown.
bool FindPreTokenizer(absl::string_view name, PreTokenizer* found);

// All names, for messages.
std::string KnownPreTokenizers();

// Ends (exclusive, in characters, ascending) of the words of `text`; they cover it completely.
std::vector<uint32_t> SplitIntoWords(const PreTokenizer& pre_tokenizer,
                                     absl::Span<const char32_t> text);

}  // namespace warpline
