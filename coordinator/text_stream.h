// The text of an answer as its tokens come: detokenised, cut at stop strings and whole characters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/stop_matcher.h"
#include "model/tokenizer.h"

namespace warpline {

// One answer's state, used by one thread; borrows the tokenizer.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stops);

  struct Piece {
    std::string text;      // UTF-8, whole characters; empty while one or a stop is incomplete
    bool stopped = false;  // a stop string is complete; the text ends before it
  };
  Piece Push(int32_t token_id);
  // The answer ends without a stop string: the held-back text. An incomplete character is withheld.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  StopMatcher stops_;
  Utf8Stream characters_;
};

}  // namespace warpline
