#include "client/gateway/sampling_fields.h"

#include <boost/json/array.hpp>
#include <boost/json/string.hpp>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace warpline {
namespace {

namespace json = boost::json;

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr double kMaxFloat = std::numeric_limits<float>::max();

// `first` and its other name `second`: both may be given when they say the same.
template <typename T>
std::optional<T> Either(RequestFields& fields, absl::string_view first, std::optional<T> a,
                        absl::string_view second, std::optional<T> b) {
  if (a.has_value() && b.has_value() && *a != *b) {
    fields.Fail(second, absl::StrCat("contradicts ", first), "conflicting_fields");
  }
  return a.has_value() ? a : b;
}

void ParseMaxTokens(RequestFields& fields, v1::GenerateRequest& request) {
  const RequestFields::IntegerBounds bounds{.least = 1, .most = kMaxInt32, .clip = true};
  const std::optional<int64_t> most =
      Either(fields, "max_tokens", fields.Integer("max_tokens", bounds), "max_completion_tokens",
             fields.Integer("max_completion_tokens", bounds));
  if (most.has_value()) request.set_max_tokens(static_cast<int32_t>(*most));
}

void ParseSeed(RequestFields& fields, v1::SamplingOptions& sampling) {
  const json::value* const seed = fields.Find("seed");
  if (seed == nullptr) return;
  if (const int64_t* const small = seed->if_int64()) {
    if (*small != -1) sampling.set_seed(static_cast<uint64_t>(*small));
  } else if (const uint64_t* const large = seed->if_uint64()) {
    sampling.set_seed(*large);
  } else {
    fields.Fail("seed", absl::StrCat("must be a 64-bit integer, not ", KindName(*seed)),
                "invalid_type");
  }
}

void ParsePenalties(RequestFields& fields, v1::SamplingOptions& sampling) {
  const std::optional<double> repetition =
      Either(fields, "repetition_penalty", fields.Number("repetition_penalty", 0, 100),
             "repeat_penalty", fields.Number("repeat_penalty", 0, 100));
  if (repetition.has_value()) {
    if (static_cast<float>(*repetition) <= 0) {
      fields.Fail("repetition_penalty", "must be larger than 0");
    }
    sampling.set_repetition_penalty(static_cast<float>(*repetition));
  }
  if (const auto presence = fields.Number("presence_penalty", -2, 2)) {
    sampling.set_presence_penalty(static_cast<float>(*presence));
  }
  if (const auto frequency = fields.Number("frequency_penalty", -2, 2)) {
    sampling.set_frequency_penalty(static_cast<float>(*frequency));
  }
  const RequestFields::IntegerBounds window{.least = -1, .most = kMaxInt32, .clip = true};
  if (const auto last = fields.Integer("repeat_last_n", window)) {
    sampling.set_penalty_window(static_cast<int32_t>(*last));
  }
}

void ParseLogitBias(RequestFields& fields, v1::SamplingOptions& sampling) {
  const json::value* const value = fields.Find("logit_bias");
  if (value == nullptr) return;
  const json::object* const biases = value->if_object();
  if (biases == nullptr) {
    fields.Fail("logit_bias", "must be an object from token id to number", "invalid_type");
    return;
  }
  if (biases->size() > kMaxLogitBiases) {
    fields.Fail("logit_bias", absl::StrCat("has ", biases->size(), " entries, at most ",
                                           kMaxLogitBiases, " are allowed"));
    return;
  }
  RequestFields entries(*biases, "logit_bias.");
  for (const json::key_value_pair& entry : *biases) {
    const absl::string_view key(entry.key().data(), entry.key().size());
    int32_t id = 0;
    const bool digits = key.find_first_not_of("0123456789") == absl::string_view::npos;
    if (!digits || !absl::SimpleAtoi(key, &id)) {
      fields.Fail("logit_bias", "has a key that is no token id");
      return;
    }
    if (const auto bias = entries.Number(key, -100, 100)) {
      (*sampling.mutable_logit_bias())[id] = static_cast<float>(*bias);
    }
  }
  fields.Keep(entries.status());
}

void AddStop(RequestFields& fields, const std::string& name, const json::value& value,
             v1::GenerateRequest& request) {
  const json::string* const text = value.if_string();
  if (text == nullptr) {
    fields.Fail(name, absl::StrCat("must be a string, not ", KindName(value)), "invalid_type");
  } else if (text->empty()) {
    fields.Fail(name, "must not be empty");
  } else if (text->size() > kMaxStopBytes) {
    fields.Fail(name, absl::StrCat("has ", text->size(), " bytes, at most ", kMaxStopBytes,
                                   " are allowed"));
  } else {
    request.add_stop(text->data(), text->size());
  }
}

void ParseStop(RequestFields& fields, v1::GenerateRequest& request) {
  const json::value* const stop = fields.Find("stop");
  if (stop == nullptr) return;
  const json::array* const list = stop->if_array();
  if (list == nullptr) return AddStop(fields, "stop", *stop, request);
  if (list->size() > kMaxStopStrings) {
    fields.Fail("stop", absl::StrCat("has ", list->size(), " strings, at most ", kMaxStopStrings,
                                     " are allowed"));
    return;
  }
  for (size_t index = 0; index < list->size(); ++index) {
    AddStop(fields, absl::StrCat("stop[", index, "]"), (*list)[index], request);
  }
}

void RefuseWhen(RequestFields& fields, bool asks, absl::string_view name) {
  if (asks) fields.Fail(name, "is not supported", "unsupported");
}

bool IsType(const json::value& value, absl::string_view type) {
  const json::object* const object = value.if_object();
  const json::value* const found = object == nullptr ? nullptr : object->if_contains("type");
  return found != nullptr && found->is_string() &&
         found->get_string() == json::string_view(type.data(), type.size());
}

// `n` and `best_of` are positive numbers, of which only 1 is supported yet.
void RefuseMoreThanOne(RequestFields& fields, absl::string_view name) {
  const auto count = fields.Integer(name, {.least = 1, .most = kMaxInt32});
  RefuseWhen(fields, count.has_value() && *count != 1, name);
}

// Constraints on the output: an unconstrained answer would be a lie.
void RefuseConstraints(RequestFields& fields) {
  const json::value* const format = fields.Find("response_format");
  RefuseWhen(fields, format != nullptr && !IsType(*format, "text"), "response_format");
  for (const absl::string_view name :
       {"grammar", "json_schema", "structured_outputs", "guided_json", "guided_regex",
        "guided_choice", "guided_grammar"}) {
    const json::value* const value = fields.Find(name);
    const bool empty = value != nullptr && value->is_string() && value->get_string().empty();
    RefuseWhen(fields, value != nullptr && !empty, name);
  }
}

void RefuseTools(RequestFields& fields) {
  for (const absl::string_view name : {"tools", "functions"}) {
    const json::value* const value = fields.Find(name);
    const bool empty = value != nullptr && value->is_array() && value->get_array().empty();
    RefuseWhen(fields, value != nullptr && !empty, name);
  }
  for (const absl::string_view name : {"tool_choice", "function_call"}) {
    const json::value* const value = fields.Find(name);
    const bool neutral = value != nullptr && value->is_string() &&
                         (value->get_string() == "none" || value->get_string() == "auto");
    RefuseWhen(fields, value != nullptr && !neutral, name);
  }
}

void RefuseLogProbabilities(RequestFields& fields) {
  const json::value* const wanted = fields.Find("logprobs");
  RefuseWhen(fields, wanted != nullptr && !(wanted->is_bool() && !wanted->get_bool()), "logprobs");
  const auto top = fields.Integer("top_logprobs", {.least = 0, .most = 20});
  RefuseWhen(fields, top.value_or(0) != 0, "top_logprobs");
}

// Nothing is done with these two, but a line end in them may only mean to forge a log line.
void CheckLabels(RequestFields& fields) {
  const auto has_line_end = [](const json::value& value) {
    const json::string* const text = value.if_string();
    return text != nullptr && text->find_first_of("\r\n") != json::string::npos;
  };
  const json::value* const user = fields.Find("user");
  if (user != nullptr && !user->is_string()) {
    fields.Fail("user", absl::StrCat("must be a string, not ", KindName(*user)), "invalid_type");
  }
  if (user != nullptr && has_line_end(*user)) fields.Fail("user", "must not have line ends");
  const json::value* const metadata = fields.Find("metadata");
  const json::object* const labels = metadata == nullptr ? nullptr : metadata->if_object();
  if (labels == nullptr) return;
  for (const json::key_value_pair& label : *labels) {
    if (has_line_end(label.value()) ||
        label.key().find_first_of("\r\n") != json::string_view::npos) {
      fields.Fail("metadata", "must not have line ends");
    }
  }
}

}  // namespace

void ParseSamplingFields(RequestFields& fields, v1::GenerateRequest& request) {
  v1::SamplingOptions& sampling = *request.mutable_sampling();
  if (const auto temperature = fields.Number("temperature", 0, kMaxFloat)) {
    sampling.set_temperature(static_cast<float>(*temperature));
  }
  // Off is 0 here; -1 says the same in other servers.
  const RequestFields::IntegerBounds top_k_bounds{.least = -1, .most = kMaxInt32, .clip = true};
  if (const auto top_k = fields.Integer("top_k", top_k_bounds)) {
    sampling.set_top_k(*top_k < 0 ? 0 : static_cast<int32_t>(*top_k));
  }
  if (const auto top_p = fields.Number("top_p", 0, 1)) {
    sampling.set_top_p(static_cast<float>(*top_p));
  }
  if (const auto min_p = fields.Number("min_p", 0, 1)) {
    sampling.set_min_p(static_cast<float>(*min_p));
  }
  ParsePenalties(fields, sampling);
  ParseSeed(fields, sampling);
  ParseLogitBias(fields, sampling);
  ParseMaxTokens(fields, request);
  ParseStop(fields, request);
  request.set_ignore_eos(fields.Bool("ignore_eos").value_or(false));
}

void RefuseUnsupported(RequestFields& fields) {
  RefuseMoreThanOne(fields, "n");
  RefuseMoreThanOne(fields, "best_of");
  RefuseWhen(fields, fields.Bool("echo").value_or(false), "echo");
  RefuseWhen(fields, !fields.String("suffix").value_or("").empty(), "suffix");
  const auto typical = fields.Number("typical_p", 0, 1);
  RefuseWhen(fields, typical.value_or(1) != 1, "typical_p");
  RefuseLogProbabilities(fields);
  RefuseTools(fields);
  RefuseConstraints(fields);
  RefuseWhen(fields, fields.Find("audio") != nullptr, "audio");
  CheckLabels(fields);
}

}  // namespace warpline
