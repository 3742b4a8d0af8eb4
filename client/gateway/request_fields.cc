#include "client/gateway/request_fields.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/error_detail.h"

namespace warpline {

namespace json = boost::json;

absl::string_view KindName(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
      return "an integer";
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "unknown";
}

const json::value* RequestFields::Find(absl::string_view name) const {
  const json::value* const value = object_.if_contains({name.data(), name.size()});
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<int64_t> RequestFields::Integer(absl::string_view name, IntegerBounds bounds) {
  const json::value* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  int64_t number = 0;
  if (const int64_t* const small = value->if_int64()) {
    number = *small;
  } else if (value->is_uint64()) {
    number = std::numeric_limits<int64_t>::max();
  } else if (const double* const real = value->if_double(); real != nullptr && *real == 0) {
    number = 0;
  } else {
    Fail(name, absl::StrCat("must be an integer, not ", KindName(*value)), "invalid_type");
    return std::nullopt;
  }
  if (number > bounds.most && bounds.clip) return bounds.most;
  if (number < bounds.least || number > bounds.most) {
    Fail(name, bounds.clip ? absl::StrCat("must be at least ", bounds.least)
                           : absl::StrCat("must lie between ", bounds.least, " and ", bounds.most));
    return std::nullopt;
  }
  return number;
}

std::optional<double> RequestFields::Number(absl::string_view name, double least, double most) {
  const json::value* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    Fail(name, absl::StrCat("must be a number, not ", KindName(*value)), "invalid_type");
    return std::nullopt;
  }
  const double number = value->is_double()  ? value->get_double()
                        : value->is_int64() ? static_cast<double>(value->get_int64())
                                            : static_cast<double>(value->get_uint64());
  if (!std::isfinite(number) || number < least || number > most) {
    Fail(name, absl::StrCat("must lie between ", least, " and ", most));
    return std::nullopt;
  }
  return number;
}

std::optional<bool> RequestFields::Bool(absl::string_view name) {
  const json::value* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (const bool* const flag = value->if_bool()) return *flag;
  Fail(name, absl::StrCat("must be true or false, not ", KindName(*value)), "invalid_type");
  return std::nullopt;
}

std::optional<std::string> RequestFields::String(absl::string_view name) {
  const json::value* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (const json::string* const text = value->if_string()) {
    return std::string(text->data(), text->size());
  }
  Fail(name, absl::StrCat("must be a string, not ", KindName(*value)), "invalid_type");
  return std::nullopt;
}

void RequestFields::Fail(absl::string_view name, absl::string_view message,
                         absl::string_view code) {
  Keep(InvalidField(absl::StrCat(prefix_, name), message, code));
}

void RequestFields::Keep(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

}  // namespace warpline
