// What tokenizer.* keys of a GGUF file say, checked: the tokens, the special ids and the defaults.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/gguf.h"
#include "model/pre_tokenizer.h"

namespace warpline {

enum class TokenType : uint8_t {
  kUndefined,
  kNormal,
  kUnknown,
  kControl,
  kUserDefined,
  kUnused,
  kByte
};

enum class TokenizerKind : uint8_t { kNone, kBpe, kSpm };

struct Vocabulary {
  TokenizerKind kind = TokenizerKind::kNone;
  std::vector<std::string> texts;  // by id
  std::vector<TokenType> types;
  std::vector<float> scores;                            // SPM
  PreTokenizer pre_tokenizer;                           // BPE
  absl::flat_hash_map<absl::string_view, int32_t> ids;  // by text; views into `texts`

  int32_t bos_id = -1;  // -1: none
  int32_t eos_id = -1;
  int32_t unknown_id = -1;
  bool adds_bos = false;
  bool adds_eos = false;
  bool space_prefix = false;   // SPM
  bool cleans_spaces = false;  // in whole-text detokenisation
  std::vector<bool> ends_generation;
  std::vector<int32_t> suppressed_ids;
  std::vector<std::string> warnings;

  int32_t size() const { return static_cast<int32_t>(texts.size()); }
  bool Contains(int32_t id) const { return id >= 0 && id < size(); }
  // The token that plain text spelled `text` may become, -1 when there is none. Never a control,
  // unknown or byte token, nor a user-defined one in brackets: those come from the partition into
  // special tokens alone.
  int32_t FindPlain(absl::string_view text) const;
  // Cut out of texts before anything else: control, unknown and user-defined tokens.
  bool IsSpecial(int32_t id) const;
  // User-defined tokens spelled <...> or [...] mark structure, others are ordinary text that was
  // cut out.
  bool IsBracketed(int32_t id) const;
};

// Errors: InvalidArgument naming the key, and the token where one is at fault.
absl::StatusOr<Vocabulary> LoadVocabulary(const GgufFile& file);

}  // namespace warpline
