// Cuts special tokens out of a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer_vocabulary.h"

namespace warpline {

struct SpecialMatch {
  size_t begin = 0;  // bytes, half-open
  size_t end = 0;
  int32_t id = -1;
};

// The control, user-defined and unknown tokens of a vocabulary in one automaton (Aho and
// Corasick's), so that a text is read once however many there are. Immutable.
class SpecialTokens {
 public:
  explicit SpecialTokens(const Vocabulary& vocabulary);

  // What remains when each token, longest text first (among equals the lower id), is looked for
  // from left to right in the parts of the text that no earlier one took. Only occurrences that
  // `allowed` accepts count. Ascending, disjoint.
  std::vector<SpecialMatch> Find(
      absl::string_view text,
      absl::FunctionRef<bool(int32_t id, size_t begin, size_t end)> allowed) const;

 private:
  struct Node {  // of the trie of all texts
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    int32_t suffix = 0;    // the node of the longest proper suffix that is in the trie
    int32_t longest = -1;  // the longest token that ends here, an index into tokens_
    uint8_t byte = 0;
  };
  struct Token {
    int32_t id = -1;
    uint32_t byte_count = 0;
    int32_t shorter =
        -1;  // the longest token that is a proper suffix of this one, an index into tokens_
  };

  int32_t Child(int32_t node, uint8_t byte) const;
  void Insert(absl::string_view text, int32_t token);
  void LinkSuffixes();

  std::vector<Node> nodes_;             // the root first
  std::vector<Token> tokens_;           // longest first
  std::vector<int32_t> root_children_;  // by byte, -1 where there is none
};

}  // namespace warpline
