#include "client/gateway/json_body.h"

#include <boost/json/memory_resource.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/parser.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cmath>
#include <new>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/error_detail.h"

namespace warpline {
namespace {

namespace json = boost::json;

// Hands out heap memory up to a budget: a short body can mean values many times its size.
class BudgetResource final : public json::memory_resource {
 public:
  explicit BudgetResource(size_t bytes) : left_(bytes) {}

 private:
  void* do_allocate(size_t bytes, size_t /*align*/) override {
    if (bytes > left_) throw std::bad_alloc();
    void* const memory = ::operator new(bytes);
    left_ -= bytes;
    return memory;
  }
  void do_deallocate(void* memory, size_t bytes, size_t /*align*/) override {
    ::operator delete(memory);
    left_ += bytes;
  }
  bool do_is_equal(const json::memory_resource& other) const noexcept override {
    return this == &other;
  }

  size_t left_;
};

// Recursion is bounded by kMaxJsonDepth.
bool AllFinite(const json::value& value) {
  if (const double* const number = value.if_double()) return std::isfinite(*number);
  if (const json::array* const array = value.if_array()) {
    for (const json::value& item : *array) {
      if (!AllFinite(item)) return false;
    }
  }
  if (const json::object* const object = value.if_object()) {
    for (const json::key_value_pair& member : *object) {
      if (!AllFinite(member.value())) return false;
    }
  }
  return true;
}

// Where the first number of `body`, which is valid JSON, stands that the parser takes for infinite.
size_t PositionOfInfinite(absl::string_view body) {
  bool in_string = false;
  for (size_t at = 0; at < body.size(); ++at) {
    if (body[at] == '"') {
      in_string = !in_string;
    } else if (in_string) {
      if (body[at] == '\\') ++at;
    } else if (body[at] == '-' || absl::ascii_isdigit(body[at])) {
      const absl::string_view number =
          body.substr(at, body.find_first_not_of("+-.0123456789eE", at) - at);
      json::error_code error;
      if (!AllFinite(json::parse({number.data(), number.size()}, error))) return at;
      at += number.size() - 1;
    }
  }
  return 0;
}

absl::Status Malformed(size_t position, absl::string_view what) {
  return WithDetail(absl::InvalidArgumentError(
                        absl::StrCat("the body is no valid JSON: ", what, " at byte ", position)),
                    {.code = "invalid_json"});
}

}  // namespace

absl::StatusOr<json::object> ParseJsonObject(absl::string_view body, size_t memory_bytes) {
  try {
    const json::storage_ptr storage = json::make_shared_resource<BudgetResource>(memory_bytes);
    json::parse_options options;
    options.max_depth = kMaxJsonDepth;
    json::parser parser(storage, options);
    parser.reset(storage);
    json::error_code error;
    const size_t used = parser.write_some(body.data(), body.size(), error);
    if (error == json::error::too_deep) {
      return Malformed(used, absl::StrCat("nesting deeper than ", kMaxJsonDepth));
    }
    if (error) return Malformed(used, error.message());
    if (used != body.size()) return Malformed(used, "more than one value");
    json::value value = parser.release();
    if (!value.is_object()) return Malformed(0, "the body must be one object");
    if (!AllFinite(value)) return Malformed(PositionOfInfinite(body), "a number is too large");
    return std::move(value.get_object());
  } catch (const std::bad_alloc&) {
    return WithDetail(absl::ResourceExhaustedError("the body has too many values"),
                      {.code = "request_too_large"});
  }
}

std::string ToJson(const json::value& value) { return json::serialize(value); }

}  // namespace warpline
