#include "model/tokenizer_clean_spaces.h"

#include "absl/strings/str_replace.h"

namespace warpline {

std::string CleanSpaces(absl::string_view text) {
  std::string cleaned =
      absl::StrReplaceAll(text, {{" ?", "?"}, {" !", "!"}, {" .", "."}, {" ,", ","}});
  cleaned = absl::StrReplaceAll(cleaned, {{" ' ", "'"}});
  return absl::StrReplaceAll(cleaned,
                             {{" 's", "'s"}, {" 'm", "'m"}, {" 're", "'re"}, {" 've", "'ve"}});
}

}  // namespace warpline
