#include "client/gateway/http_response.h"

#include <boost/beast/http/status.hpp>
#include <boost/json/object.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error_detail.h"
#include "client/gateway/json_body.h"

namespace warpline {
namespace {

namespace json = boost::json;

constexpr int kRetryAfterSeconds = 1;

json::string_view View(absl::string_view text) { return {text.data(), text.size()}; }

absl::string_view ErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return http_status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string ErrorJson(int http_status, absl::string_view message, absl::string_view code,
                      absl::string_view param) {
  json::object error;
  error["message"] = View(message);
  error["type"] = View(ErrorType(http_status));
  error["param"] = param.empty() ? json::value(nullptr) : json::value(View(param));
  error["code"] = View(code);
  return ToJson(json::object{{"error", std::move(error)}});
}

// The code of an error that has none of its own.
std::string CodeName(absl::StatusCode code) {
  return absl::AsciiStrToLower(absl::StatusCodeToString(code));
}

void AppendFields(std::string& text, const HeaderFields& fields) {
  for (const auto& [name, value] : fields) absl::StrAppend(&text, name, ": ", value, "\r\n");
}

std::string StatusLine(int status) {
  const boost::beast::string_view reason =
      boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status));
  return absl::StrCat(kAnswerPrefix, status, " ", absl::string_view(reason.data(), reason.size()),
                      "\r\n");
}

}  // namespace

HttpResponse ErrorResponse(int http_status, absl::string_view message, absl::string_view code,
                           absl::string_view param) {
  HttpResponse response{.status = http_status,
                        .body = ErrorJson(http_status, message, code, param)};
  if (http_status == 429 || http_status == 503) {
    response.fields.emplace_back("Retry-After", absl::StrCat(kRetryAfterSeconds));
  }
  if (http_status == 401) response.fields.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string ErrorBody(const absl::Status& status) {
  const ErrorDetail detail = DetailOf(status);
  return ErrorJson(HttpStatusOf(status), status.message(),
                   detail.code.empty() ? CodeName(status.code()) : detail.code, detail.param);
}

HttpResponse ErrorResponse(const absl::Status& status) {
  const ErrorDetail detail = DetailOf(status);
  return ErrorResponse(HttpStatusOf(status), status.message(),
                       detail.code.empty() ? CodeName(status.code()) : detail.code, detail.param);
}

HttpResponse JsonResponse(std::string body) { return {.body = std::move(body)}; }

std::string Serialize(const HttpResponse& response, const HeaderFields& extra, Framing framing) {
  std::string text = StatusLine(response.status);
  const bool bodiless = response.status == 204;
  if (!bodiless) {
    absl::StrAppend(&text, "Content-Type: ", response.content_type,
                    "\r\nContent-Length: ", response.body.size(), "\r\n");
  }
  AppendFields(text, response.fields);
  AppendFields(text, extra);
  absl::StrAppend(&text, "Connection: ", framing.keep_alive ? "keep-alive" : "close", "\r\n\r\n");
  if (!framing.head_only && !bodiless) absl::StrAppend(&text, response.body);
  return text;
}

std::string StreamHeader(const HeaderFields& extra, bool keep_alive, bool chunked) {
  std::string text = StatusLine(200);
  absl::StrAppend(&text, "Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n",
                  "X-Accel-Buffering: no\r\n", chunked ? "Transfer-Encoding: chunked\r\n" : "");
  AppendFields(text, extra);
  absl::StrAppend(&text, "Connection: ", keep_alive ? "keep-alive" : "close", "\r\n\r\n");
  return text;
}

std::string Chunk(absl::string_view text) {
  if (text.empty()) return "";
  return absl::StrCat(absl::StrFormat("%x", text.size()), "\r\n", text, "\r\n");
}

std::string Event(absl::string_view data) { return absl::StrCat("data: ", data, "\n\n"); }

}  // namespace warpline
