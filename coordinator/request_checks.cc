#include "coordinator/request_checks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/error_detail.h"
#include "base/status.h"

namespace warpline {
namespace {

constexpr int kMaxBiases = 1024;
constexpr int kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;

// NaN fails, too.
absl::Status CheckRange(const char* field, float value, float least, float most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(value, " is outside ", least, " to ", most));
}

absl::Status CheckPenalties(const v1::Sampling& sampling) {
  if (!(sampling.repetition_penalty() > 0) || sampling.repetition_penalty() > 100) {
    return InvalidField("repetition_penalty", absl::StrCat(sampling.repetition_penalty(),
                                                           " is not above 0 and at most 100"));
  }
  WL_RETURN_IF_ERROR(CheckRange("presence_penalty", sampling.presence_penalty(), -2, 2));
  WL_RETURN_IF_ERROR(CheckRange("frequency_penalty", sampling.frequency_penalty(), -2, 2));
  if (sampling.penalty_window() < -1) {
    return InvalidField("penalty_window",
                        absl::StrCat(sampling.penalty_window(), " is below -1 (all tokens)"));
  }
  return absl::OkStatus();
}

absl::Status AddBiases(const v1::SamplingOptions& options, int32_t vocab_size,
                       absl::Span<const int32_t> forbidden_ids, v1::Sampling& sampling) {
  if (options.logit_bias_size() > kMaxBiases) {
    return InvalidField("logit_bias",
                        absl::StrCat(options.logit_bias_size(), " entries, at most ", kMaxBiases));
  }
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  // Sorted, so that the same request gives the same message.
  std::vector<std::pair<int32_t, float>> biases(options.logit_bias().begin(),
                                                options.logit_bias().end());
  std::sort(biases.begin(), biases.end());
  for (const auto& [id, value] : biases) {
    if (id < 0 || id >= vocab_size) {
      return InvalidField("logit_bias",
                          absl::StrCat("token id ", id, " is outside 0 to ", vocab_size - 1));
    }
    if (value != kForbidden && !(std::fabs(value) <= 100)) {
      return InvalidField("logit_bias",
                          absl::StrCat(value, " for token id ", id, " is outside -100 to 100"));
    }
    if (std::find(forbidden_ids.begin(), forbidden_ids.end(), id) != forbidden_ids.end()) continue;
    sampling.add_bias_ids(id);
    sampling.add_bias_values(value);
  }
  for (const int32_t id : forbidden_ids) {
    sampling.add_bias_ids(id);
    sampling.add_bias_values(kForbidden);
  }
  return absl::OkStatus();
}

// Of 53 bits, so that readers of JSON who keep numbers as doubles can send it back.
uint64_t DrawSeed() {
  std::random_device device;
  return ((uint64_t{device()} << 32) | device()) >> 11;
}

}  // namespace

absl::StatusOr<v1::Sampling> CheckSampling(const v1::SamplingOptions& options, int32_t vocab_size,
                                           absl::Span<const int32_t> forbidden_ids) {
  v1::Sampling sampling;
  sampling.set_temperature(options.has_temperature() ? options.temperature() : 1);
  sampling.set_top_p(options.has_top_p() ? options.top_p() : 1);
  sampling.set_min_p(options.min_p());
  sampling.set_repetition_penalty(options.has_repetition_penalty() ? options.repetition_penalty()
                                                                   : 1);
  sampling.set_presence_penalty(options.presence_penalty());
  sampling.set_frequency_penalty(options.frequency_penalty());
  sampling.set_penalty_window(options.has_penalty_window() ? options.penalty_window() : 64);
  sampling.set_seed(options.has_seed() ? options.seed() : DrawSeed());
  if (!(sampling.temperature() >= 0) || !std::isfinite(sampling.temperature())) {
    return InvalidField("temperature",
                        absl::StrCat(sampling.temperature(), " is no finite number from 0 on"));
  }
  if (options.top_k() < -1) {
    return InvalidField("top_k", absl::StrCat(options.top_k(), " is below -1 (off)"));
  }
  sampling.set_top_k(std::max(0, options.top_k()));
  WL_RETURN_IF_ERROR(CheckRange("top_p", sampling.top_p(), 0, 1));
  WL_RETURN_IF_ERROR(CheckRange("min_p", sampling.min_p(), 0, 1));
  WL_RETURN_IF_ERROR(CheckPenalties(sampling));
  WL_RETURN_IF_ERROR(AddBiases(options, vocab_size, forbidden_ids, sampling));
  return sampling;
}

absl::Status CheckTokenIds(absl::Span<const int32_t> ids, int32_t vocab_size,
                           const std::string& field) {
  if (ids.empty()) return InvalidField(field, "holds no token");
  for (size_t index = 0; index < ids.size(); ++index) {
    if (ids[index] >= 0 && ids[index] < vocab_size) continue;
    return InvalidField(absl::StrCat(field, "[", index, "]"),
                        absl::StrCat("token id ", ids[index], " is outside 0 to ", vocab_size - 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> CheckStops(const v1::GenerateRequest& request) {
  if (request.stop_size() > kMaxStops) {
    return InvalidField("stop", absl::StrCat(request.stop_size(), " strings, at most ", kMaxStops));
  }
  for (int index = 0; index < request.stop_size(); ++index) {
    const size_t bytes = request.stop(index).size();
    if (bytes >= 1 && bytes <= kMaxStopBytes) continue;
    return InvalidField(absl::StrCat("stop[", index, "]"),
                        absl::StrCat(bytes, " bytes, valid are 1 to ", kMaxStopBytes));
  }
  return std::vector<std::string>(request.stop().begin(), request.stop().end());
}

absl::StatusOr<int64_t> CheckLength(const v1::GenerateRequest& request, int64_t prompt_count,
                                    int64_t context_length) {
  if (request.has_max_tokens() && request.max_tokens() < 1) {
    return InvalidField("max_tokens", absl::StrCat(request.max_tokens(), " is below 1"));
  }
  if (prompt_count >= context_length) {
    return InvalidField(
        request.has_chat() ? "messages" : "prompt",
        absl::StrCat("the prompt has ", prompt_count, " tokens, the context length is ",
                     context_length, " and one token of it must be left for the answer"),
        "context_length_exceeded");
  }
  const int64_t room = context_length - prompt_count;
  return request.has_max_tokens() ? std::min<int64_t>(request.max_tokens(), room) : room;
}

}  // namespace warpline
