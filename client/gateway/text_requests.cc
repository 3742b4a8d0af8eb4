#include "client/gateway/text_requests.h"

#include <boost/json/array.hpp>

#include "base/error_detail.h"
#include "base/status.h"
#include "base/utf8.h"
#include "client/gateway/generate_request.h"
#include "client/gateway/json_body.h"
#include "client/gateway/request_fields.h"

namespace warpline {
namespace {

namespace json = boost::json;

json::value PieceJson(const std::string& piece) {
  if (IsUtf8(piece)) return json::value(piece);
  json::array bytes;
  for (const char byte : piece) bytes.emplace_back(static_cast<uint8_t>(byte));
  return bytes;
}

}  // namespace

absl::StatusOr<TokenizeJob> ParseTokenizeRequest(const json::object& body) {
  RequestFields fields(body);
  TokenizeJob job;
  const std::optional<std::string> content = fields.String("content");
  job.request.set_text(content.value_or(""));
  job.request.set_add_special(fields.Bool("add_special").value_or(false));
  job.request.set_parse_special(fields.Bool("parse_special").value_or(true));
  job.with_pieces = fields.Bool("with_pieces").value_or(false);
  WL_RETURN_IF_ERROR(fields.status());
  if (!content.has_value()) return InvalidField("content", "is missing", "missing_field");
  return job;
}

std::string TokenizeBody(const v1::TokenizeResponse& answer, bool with_pieces) {
  json::array tokens;
  tokens.reserve(answer.ids_size());
  for (int index = 0; index < answer.ids_size(); ++index) {
    if (with_pieces && index < answer.pieces_size()) {
      tokens.push_back(
          json::object{{"id", answer.ids(index)}, {"piece", PieceJson(answer.pieces(index))}});
    } else {
      tokens.emplace_back(answer.ids(index));
    }
  }
  return ToJson(json::object{{"tokens", std::move(tokens)}});
}

absl::StatusOr<v1::DetokenizeRequest> ParseDetokenizeRequest(const json::object& body) {
  const RequestFields fields(body);
  const json::value* const tokens = fields.Find("tokens");
  if (tokens == nullptr) return InvalidField("tokens", "is missing", "missing_field");
  v1::DetokenizeRequest request;
  request.set_unparse_special(true);
  if (tokens->is_array() && tokens->get_array().empty()) return request;
  v1::TokenIds ids;
  WL_RETURN_IF_ERROR(ParseTokenIds(*tokens, "tokens", ids));
  *request.mutable_ids() = ids.ids();
  return request;
}

std::string DetokenizeBody(const v1::DetokenizeResponse& answer) {
  return ToJson(json::object{{"content", ReplaceInvalidUtf8(answer.text())}});
}

}  // namespace warpline
