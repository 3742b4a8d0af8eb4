// The bodies of /tokenize and /detokenize.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "proto/inference.pb.h"

namespace warpline {

struct TokenizeJob {
  v1::TokenizeRequest request;
  bool with_pieces = false;
};

// {"content", "add_special": false, "parse_special": true, "with_pieces": false}
absl::StatusOr<TokenizeJob> ParseTokenizeRequest(const boost::json::object& body);
// {"tokens": [id, ..]}, with pieces {"tokens": [{"id", "piece"}, ..]}: a piece is a string, or a
// list of bytes when it is no whole text.
std::string TokenizeBody(const v1::TokenizeResponse& answer, bool with_pieces);

// {"tokens": [id, ..]}
absl::StatusOr<v1::DetokenizeRequest> ParseDetokenizeRequest(const boost::json::object& body);
// {"content"}; bytes that are no text are U+FFFD.
std::string DetokenizeBody(const v1::DetokenizeResponse& answer);

}  // namespace warpline
