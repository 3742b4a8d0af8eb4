// Request bodies as JSON: strict, bounded in depth and memory, errors with their position.
#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace warpline {

constexpr size_t kMaxJsonDepth = 64;

// Parses one JSON object. UTF-8 is checked strictly, lone surrogates and numbers beyond a double
// are refused; of equal keys the last one counts. The values may take `memory_bytes`; more is
// ResourceExhausted, everything else InvalidArgument with the byte position.
absl::StatusOr<boost::json::object> ParseJsonObject(absl::string_view body, size_t memory_bytes);

// Compact JSON text; key order and 64-bit integers survive.
std::string ToJson(const boost::json::value& value);

}  // namespace warpline
