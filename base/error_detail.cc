#include "base/error_detail.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace warpline {
namespace {

constexpr char kCodeUrl[] = "warpline/code";
constexpr char kParamUrl[] = "warpline/param";

std::string PayloadText(const absl::Status& status, absl::string_view url) {
  const absl::optional<absl::Cord> payload = status.GetPayload(url);
  return payload.has_value() ? std::string(*payload) : std::string();
}

}  // namespace

absl::Status WithDetail(absl::Status status, const ErrorDetail& detail) {
  if (!detail.code.empty()) status.SetPayload(kCodeUrl, absl::Cord(detail.code));
  if (!detail.param.empty()) status.SetPayload(kParamUrl, absl::Cord(detail.param));
  return status;
}

ErrorDetail DetailOf(const absl::Status& status) {
  return {.code = PayloadText(status, kCodeUrl), .param = PayloadText(status, kParamUrl)};
}

absl::Status InvalidField(absl::string_view param, absl::string_view message,
                          absl::string_view code) {
  return WithDetail(absl::InvalidArgumentError(absl::StrCat(param, ": ", message)),
                    {.code = std::string(code), .param = std::string(param)});
}

}  // namespace warpline
