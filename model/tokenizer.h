// Tokenizers of GGUF files: byte-level BPE and SPM. (specs: tokenizers; sections are quoted below.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/gguf.h"
#include "model/trusted_text.h"

namespace warpline {

struct EncodeOptions {
  bool add_special = false;  // bos and eos as the vocabulary says
  bool parse_special =
      false;  // control and unknown tokens in the text are matched, not only user-defined ones
};

struct DecodeOptions {
  bool remove_special =
      false;  // drop a leading bos and a trailing eos that encoding would have added
  bool unparse_special = false;  // show control tokens
};

// Immutable; all methods may be called from any thread at once. Time is near-linear in the text,
// stack is flat.
class Tokenizer {
 public:
  // Reads only tokenizer.* keys. Errors: InvalidArgument naming the key. A model without vocabulary
  // ("none", "no_vocab") gives a tokenizer with has_vocabulary() false that encodes nothing.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const GgufFile& file);
  virtual ~Tokenizer() = default;

  virtual bool has_vocabulary() const = 0;
  virtual int32_t vocab_size() const = 0;
  virtual std::vector<int32_t> Encode(absl::string_view text,
                                      const EncodeOptions& options) const = 0;
  // A rendered chat template. Special tokens match only wholly inside trusted ranges; untrusted
  // text matches only user-defined tokens not spelled <...> or [...]; text between matches is one
  // fragment across borders of trust. Adds bos as add_special does, but not twice when the text
  // already begins with it.
  virtual std::vector<int32_t> EncodeChat(const TrustedText& text) const = 0;
  // Whole text; clean-spaces rules apply where the vocabulary says so. Ids out of range give
  // nothing.
  virtual std::string Decode(absl::Span<const int32_t> ids, const DecodeOptions& options) const = 0;
  // The bytes one token adds to a stream; may end inside a UTF-8 sequence (see Utf8Stream).
  virtual std::string TokenBytes(int32_t id, bool show_special) const = 0;
  // SPM with a space prefix: a text that begins with this token loses one leading space.
  virtual bool strips_leading_space() const = 0;

  virtual bool IsEndOfGeneration(int32_t id) const = 0;
  // Ids that must never be sampled (tokenizer.ggml.suppress_tokens).
  virtual absl::Span<const int32_t> suppressed_ids() const = 0;
  // -1 when the vocabulary has none.
  virtual int32_t bos_id() const = 0;
  virtual int32_t eos_id() const = 0;
  virtual bool adds_bos() const = 0;
  // Raw text of a token, "" for -1.
  virtual std::string TokenText(int32_t id) const = 0;
  virtual absl::Span<const std::string> warnings() const = 0;
};

// Cuts a byte stream at UTF-8 character borders: Push returns what is complete, Finish the rest
// with an incomplete tail replaced by U+FFFD. Invalid bytes become U+FFFD each.
class Utf8Stream {
 public:
  std::string Push(absl::string_view bytes);
  std::string Finish();

 private:
  std::string held_;  // an incomplete character
};

}  // namespace warpline
