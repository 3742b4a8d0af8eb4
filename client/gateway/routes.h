// The routes of the gateway.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace warpline {

enum class Route {
  kChatCompletions,
  kCompletions,
  kModels,
  kModel,
  kStatus,
  kTokenize,
  kDetokenize,
  kHealth,
  kReady,
  kMetrics,
};

struct RouteInfo {
  Route route;
  const char* path;  // the whole path; for kModel what stands before the name
  bool post;         // POST, otherwise GET and HEAD
  bool open;         // needs no API key: probes and scrapers have none
};

// The route of a request target (path, or absolute URL), whose query is ignored. Null: none.
const RouteInfo* FindRoute(absl::string_view target);
// For metrics; "other" for null.
absl::string_view RouteName(const RouteInfo* route);
// The value of the Allow field.
absl::string_view AllowedMethods(const RouteInfo& route);
// The model's name in a target of kModel, percent-decoded.
std::string ModelInTarget(absl::string_view target);

}  // namespace warpline
