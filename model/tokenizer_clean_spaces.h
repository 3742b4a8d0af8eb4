// The clean-up that some vocabularies ask for when a whole text is detokenised.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace warpline {

// Three passes: the space before ? ! . , goes; " ' " becomes "'"; the space before 's 'm 're 've
// goes.
std::string CleanSpaces(absl::string_view text);

}  // namespace warpline
