// Fuzz target: a client's bytes as an HTTP request, split anywhere, and as the body of each route.
#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "base/utf8.h"
#include "client/gateway/generate_request.h"
#include "client/gateway/http_head.h"
#include "client/gateway/http_response.h"
#include "client/gateway/json_body.h"
#include "client/gateway/routes.h"
#include "client/gateway/text_requests.h"

namespace warpline {
namespace {

namespace http = boost::beast::http;

constexpr size_t kMaxBodyBytes = 4096;
constexpr size_t kMemoryBytes = 1 << 20;

// Bytes that arrive in two parts must be judged as if they had arrived at once.
void CheckHead(absl::string_view bytes) {
  const HeadScan whole = ScanHead(bytes);
  for (size_t size = 0; size <= bytes.size(); size += 1 + size / 8) {
    const HeadScan part = ScanHead(bytes.substr(0, size));
    if (part.state == HeadScan::State::kIncomplete) continue;
    WL_CHECK(part.state == whole.state);
    WL_CHECK(part.http_status == whole.http_status || bytes.size() > kMaxHeadBytes);
  }
  if (whole.state == HeadScan::State::kRefused) WL_CHECK(whole.http_status >= 400);
}

// What the parser makes of a header that was let through, fed as a connection feeds it.
void CheckParser(absl::string_view bytes, size_t step) {
  http::request_parser<http::string_body> parser;
  parser.header_limit(kMaxHeadBytes);
  parser.body_limit(kMaxBodyBytes);
  parser.eager(true);
  std::string inbox;
  boost::system::error_code error;
  while (!bytes.empty() && !parser.is_done() && (!error || error == http::error::need_more)) {
    inbox.append(bytes.data(), std::min(step, bytes.size()));
    bytes.remove_prefix(std::min(step, bytes.size()));
    error = {};
    while (!inbox.empty() && !parser.is_done() && !error) {
      const size_t used = parser.put(boost::asio::buffer(inbox), error);
      inbox.erase(0, used);
      if (used == 0) break;
    }
  }
  if (!parser.is_header_done()) return;
  const absl::string_view target(parser.get().target().data(), parser.get().target().size());
  const RouteInfo* const route = FindRoute(target);
  if (route != nullptr && route->route == Route::kModel) (void)ModelInTarget(target);
  WL_CHECK(parser.get().body().size() <= kMaxBodyBytes);
}

void CheckJob(const absl::StatusOr<GenerateJob>& job) {
  if (!job.ok()) {
    WL_CHECK(HttpStatusOf(job.status()) == 400);
    WL_CHECK(ParseJsonObject(ErrorBody(job.status()), kMemoryBytes).ok());
    return;
  }
  WL_CHECK(!job->requests.empty() && job->requests.size() <= kMaxBatchPrompts);
  for (const v1::GenerateRequest& request : job->requests) {
    WL_CHECK(request.max_tokens() > 0 || !request.has_max_tokens());
    WL_CHECK(IsUtf8(request.text()));
    if (!request.has_chat()) continue;
    const std::string wrapped = "{\"messages\":" + request.chat().messages_json() + "}";
    WL_CHECK(ParseJsonObject(wrapped, 16 * kMemoryBytes).ok());
  }
}

void CheckBody(absl::string_view bytes) {
  const auto body = ParseJsonObject(bytes, kMemoryBytes);
  if (!body.ok()) return;
  CheckJob(ParseChatRequest(*body));
  CheckJob(ParseCompletionRequest(*body));
  (void)ParseTokenizeRequest(*body);
  (void)ParseDetokenizeRequest(*body);
}

}  // namespace
}  // namespace warpline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  warpline::CheckHead(bytes);
  if (warpline::ScanHead(bytes).state == warpline::HeadScan::State::kComplete) {
    for (const size_t step : {size_t{1}, size_t{7}, size + 1}) warpline::CheckParser(bytes, step);
  }
  warpline::CheckBody(bytes);
  return 0;
}
