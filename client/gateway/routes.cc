#include "client/gateway/routes.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"

namespace warpline {
namespace {

constexpr RouteInfo kRoutes[] = {
    {.route = Route::kChatCompletions, .path = "/v1/chat/completions", .post = true, .open = false},
    {.route = Route::kCompletions, .path = "/v1/completions", .post = true, .open = false},
    {.route = Route::kModels, .path = "/v1/models", .post = false, .open = false},
    {.route = Route::kStatus, .path = "/v1/status", .post = false, .open = false},
    {.route = Route::kTokenize, .path = "/tokenize", .post = true, .open = false},
    {.route = Route::kDetokenize, .path = "/detokenize", .post = true, .open = false},
    {.route = Route::kHealth, .path = "/health", .post = false, .open = true},
    {.route = Route::kReady, .path = "/ready", .post = false, .open = true},
    {.route = Route::kMetrics, .path = "/metrics", .post = false, .open = true},
};
constexpr RouteInfo kModelRoute = {
    .route = Route::kModel, .path = "/v1/models/", .post = false, .open = false};

absl::string_view PathOf(absl::string_view target) {
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(target, scheme)) continue;
    const size_t slash = target.find('/', scheme.size());
    target = slash == absl::string_view::npos ? "/" : target.substr(slash);
  }
  return target.substr(0, target.find('?'));
}

}  // namespace

const RouteInfo* FindRoute(absl::string_view target) {
  const absl::string_view path = PathOf(target);
  for (const RouteInfo& route : kRoutes) {
    if (path == route.path) return &route;
  }
  const absl::string_view prefix = kModelRoute.path;
  return path.size() > prefix.size() && absl::StartsWith(path, prefix) ? &kModelRoute : nullptr;
}

absl::string_view RouteName(const RouteInfo* route) {
  return route == nullptr ? absl::string_view("other") : route->path;
}

absl::string_view AllowedMethods(const RouteInfo& route) {
  return route.post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

std::string ModelInTarget(absl::string_view target) {
  const absl::string_view name = PathOf(target).substr(absl::string_view(kModelRoute.path).size());
  std::string decoded;
  for (size_t index = 0; index < name.size(); ++index) {
    const bool escape = name[index] == '%' && index + 2 < name.size() &&
                        absl::ascii_isxdigit(static_cast<unsigned char>(name[index + 1])) &&
                        absl::ascii_isxdigit(static_cast<unsigned char>(name[index + 2]));
    if (escape) {
      decoded += absl::HexStringToBytes(name.substr(index + 1, 2));
      index += 2;
    } else {
      decoded.push_back(name[index]);
    }
  }
  return decoded;
}

}  // namespace warpline
