// Answers as bytes, and what an error answer looks like.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace warpline {

using HeaderFields = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HeaderFields fields;      // beside content type and length
  bool must_close = false;  // the connection cannot be used any further
};

// An OpenAI error object with `type` chosen by the status.
HttpResponse ErrorResponse(int http_status, absl::string_view message, absl::string_view code,
                           absl::string_view param = "");
// As the table of codes says: Retry-After with 429 and 503.
HttpResponse ErrorResponse(const absl::Status& status);
HttpResponse JsonResponse(std::string body);

// {"error": {...}} alone, as an answer's body and as the last event of a stream.
std::string ErrorBody(const absl::Status& status);
int HttpStatusOf(const absl::Status& status);

struct Framing {
  bool keep_alive = true;
  bool head_only = false;  // HEAD: the header of the answer without its body
};
// The whole answer. `extra` fields go into every answer of this gateway (CORS).
std::string Serialize(const HttpResponse& response, const HeaderFields& extra, Framing framing);
// The header of a stream of events; with `chunked` the body follows in chunks.
std::string StreamHeader(const HeaderFields& extra, bool keep_alive, bool chunked);

// Every answer begins with these bytes, whatever its status.
constexpr absl::string_view kAnswerPrefix = "HTTP/1.1 ";

// One chunk of a chunked body; empty text would end the body, so it gives nothing.
std::string Chunk(absl::string_view text);
constexpr absl::string_view kLastChunk = "0\r\n\r\n";

// Server-sent events. `data` has no line ends (JSON text has none).
std::string Event(absl::string_view data);
constexpr absl::string_view kDoneEvent = "data: [DONE]\n\n";
constexpr absl::string_view kKeepAliveComment = ": keep-alive\n\n";

}  // namespace warpline
