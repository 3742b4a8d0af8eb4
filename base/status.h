// Error handling macros over absl::Status: return early, assign or return, and checks that end the
// process.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

// Returns from the enclosing function when `expression` is a status that is not OK.
#define WL_RETURN_IF_ERROR(expression)                            \
  do {                                                            \
    if (absl::Status wl_status = (expression); !wl_status.ok()) { \
      return wl_status;                                           \
    }                                                             \
  } while (false)

#define WL_STATUS_CONCAT_INNER(a, b) a##b
#define WL_STATUS_CONCAT(a, b) WL_STATUS_CONCAT_INNER(a, b)

// `target` takes the value of the StatusOr `expression`; returns from the enclosing function on an
// error.
#define WL_ASSIGN_OR_RETURN(target, expression) \
  WL_ASSIGN_OR_RETURN_IMPL(WL_STATUS_CONCAT(wl_statusor_, __LINE__), target, expression)
#define WL_ASSIGN_OR_RETURN_IMPL(result, target, expression) \
  auto result = (expression);                                \
  if (!result.ok()) {                                        \
    return std::move(result).status();                       \
  }                                                          \
  target = std::move(result).value()

// A broken invariant: prints where and ends the process, which its supervisor restarts.
#define WL_CHECK(condition)                                                                  \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      ::std::fprintf(stderr, "check failed: %s at %s:%d\n", #condition, __FILE__, __LINE__); \
      ::std::abort();                                                                        \
    }                                                                                        \
  } while (false)

namespace warpline {

// The same code and payloads with `context` and ": " before the message.
inline absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&annotated](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

}  // namespace warpline
