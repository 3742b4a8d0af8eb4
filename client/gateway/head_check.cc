// Api's checks of a request's header.
#include <boost/beast/http/field.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/gateway/api.h"

namespace warpline {
namespace {

namespace http = boost::beast::http;

constexpr char kApiKeyField[] = "X-Api-Key";

absl::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

// JSON in UTF-8, or nothing said.
bool IsJsonType(absl::string_view content_type) {
  const std::vector<absl::string_view> parts = absl::StrSplit(content_type, ';');
  if (!absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(parts[0]), "application/json")) {
    return false;
  }
  for (size_t index = 1; index < parts.size(); ++index) {
    absl::string_view parameter = absl::StripAsciiWhitespace(parts[index]);
    if (!absl::StartsWithIgnoreCase(parameter, "charset=")) continue;
    parameter.remove_prefix(absl::string_view("charset=").size());
    const std::string charset = absl::AsciiStrToLower(parameter);
    if (charset != "utf-8" && charset != "utf8" && charset != "\"utf-8\"") return false;
  }
  return true;
}

HttpResponse Malformed(absl::string_view message) {
  HttpResponse response = ErrorResponse(400, message, "bad_request");
  response.must_close = true;
  return response;
}

// Two readings of one message are how requests are smuggled past a proxy.
std::optional<HttpResponse> CheckFraming(const Api::RequestHeader& head) {
  for (const char* const once : {"Authorization", kApiKeyField, "Host"}) {
    if (head.count(once) > 1) return Malformed(absl::StrCat("more than one field ", once));
  }
  if (head.count(http::field::transfer_encoding) > 0 &&
      !absl::EqualsIgnoreCase(View(head[http::field::transfer_encoding]), "chunked")) {
    return Malformed("the only transfer encoding is chunked");
  }
  if (View(head[http::field::content_length]).find_first_not_of("0123456789") !=
      absl::string_view::npos) {
    return Malformed("the content length is no number");
  }
  return std::nullopt;
}

}  // namespace

HeadVerdict Api::CheckHead(const RequestHeader& head, bool draining) const {
  HeadVerdict verdict;
  const auto refuse = [&verdict](HttpResponse response) {
    verdict.refusal = std::move(response);
    return verdict;
  };
  if (auto refusal = CheckFraming(head)) return refuse(std::move(*refusal));
  verdict.route = FindRoute(View(head.target()));
  if (verdict.route == nullptr) {
    return refuse(ErrorResponse(404, "there is no such route", "not_found"));
  }
  const RouteInfo& route = *verdict.route;
  const http::verb method = head.method();
  if (method == http::verb::options) return refuse(OptionsResponse(route));
  const bool fits = route.post ? method == http::verb::post
                               : method == http::verb::get || method == http::verb::head;
  if (!fits) {
    HttpResponse response = ErrorResponse(
        405, absl::StrCat("this route takes ", AllowedMethods(route)), "method_not_allowed");
    response.fields.emplace_back("Allow", std::string(AllowedMethods(route)));
    return refuse(std::move(response));
  }
  if (auto refusal = CheckAccess(head, route)) return refuse(std::move(*refusal));
  if (draining && route.route != Route::kHealth && route.route != Route::kMetrics) {
    return refuse(ErrorResponse(absl::UnavailableError("the server is shutting down")));
  }
  if (auto refusal = CheckContent(head)) return refuse(std::move(*refusal));
  const absl::string_view expectation = View(head[http::field::expect]);
  verdict.expects_continue = absl::EqualsIgnoreCase(expectation, "100-continue");
  if (!expectation.empty() && !verdict.expects_continue) {
    return refuse(ErrorResponse(417, "only 100-continue can be expected", "bad_request"));
  }
  return verdict;
}

std::optional<HttpResponse> Api::CheckAccess(const RequestHeader& head,
                                             const RouteInfo& route) const {
  if (!keys_.required() || route.open) return std::nullopt;
  const absl::string_view bearer = BearerKey(View(head[http::field::authorization]));
  const absl::string_view key = bearer.empty() ? View(head[kApiKeyField]) : bearer;
  if (keys_.Accepts(key)) return std::nullopt;
  return ErrorResponse(401, key.empty() ? "an API key is needed" : "the API key is wrong",
                       "invalid_api_key");
}

std::optional<HttpResponse> Api::CheckContent(const RequestHeader& head) const {
  if (head.count(http::field::content_encoding) > 0) {
    return ErrorResponse(415, "encoded bodies are not accepted", "unsupported_media_type");
  }
  const auto type = head.find(http::field::content_type);
  const bool is_post = head.method() == http::verb::post;
  if (is_post && type != head.end() && !IsJsonType(View(type->value()))) {
    return ErrorResponse(415, "the body must be application/json in UTF-8",
                         "unsupported_media_type");
  }
  return std::nullopt;
}

HttpResponse Api::OptionsResponse(const RouteInfo& route) const {
  HttpResponse response{.status = 204};
  response.fields.emplace_back("Allow", std::string(AllowedMethods(route)));
  if (!config_.cors_origin.empty()) {
    response.fields.emplace_back("Access-Control-Allow-Methods",
                                 std::string(AllowedMethods(route)));
    response.fields.emplace_back("Access-Control-Allow-Headers",
                                 "Authorization, Content-Type, X-Api-Key");
    response.fields.emplace_back("Access-Control-Max-Age", "600");
  }
  return response;
}

}  // namespace warpline
