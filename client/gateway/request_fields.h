// Reads the known fields of a request body by type and range; the first thing wrong is kept.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace warpline {

// Borrows the object. A field that is null counts as absent.
class RequestFields {
 public:
  explicit RequestFields(const boost::json::object& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // Null when absent.
  const boost::json::value* Find(absl::string_view name) const;

  // Whole numbers only: 1.5, 1.0 and "5" are errors, -0 is 0. A number above `most` is an error,
  // or is taken as `most` with `clip`.
  struct IntegerBounds {
    int64_t least;
    int64_t most;
    bool clip = false;
  };
  std::optional<int64_t> Integer(absl::string_view name, IntegerBounds bounds);
  std::optional<double> Number(absl::string_view name, double least, double most);
  std::optional<bool> Bool(absl::string_view name);
  std::optional<std::string> String(absl::string_view name);

  // Keeps the first error.
  void Fail(absl::string_view name, absl::string_view message,
            absl::string_view code = "invalid_value");
  void Keep(const absl::Status& status);
  const absl::Status& status() const { return status_; }

 private:
  const boost::json::object& object_;
  const std::string prefix_;
  absl::Status status_;
};

// What kind of value this is, for messages.
absl::string_view KindName(const boost::json::value& value);

}  // namespace warpline
