#include "client/cli/bench_run.h"

#include <algorithm>
#include <boost/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/cli/bench_tokens.h"

namespace warpline {
namespace {

namespace json = boost::json;

// One short request before anything is measured.
constexpr int kWarmUpPrompt = 64;
constexpr int kWarmUpTokens = 8;
// Streams that hardly ran at one time are run again, twice as long, up to so many times the tokens
// asked for.
constexpr int kMostDecodeFactor = 16;

json::object ObjectAt(const json::object& object, const char* key) {
  const json::value* const value = object.if_contains(key);
  return value != nullptr && value->is_object() ? value->get_object() : json::object();
}

std::string StringAt(const json::object& object, const char* key) {
  const json::value* const value = object.if_contains(key);
  return value != nullptr && value->is_string() ? value->get_string().c_str() : "";
}

int64_t IntAt(const json::object& object, const char* key) {
  const json::value* const value = object.if_contains(key);
  return value != nullptr && value->is_int64() ? value->get_int64() : 0;
}

// Sends requests with prompts of their own and checks what comes back.
class Measurer {
 public:
  Measurer(const LoadClient& client, absl::Span<const int32_t> ids, int32_t vocab_size,
           PromptKey key)
      : client_(client), ids_(ids), vocab_size_(vocab_size), key_(key) {}

  absl::StatusOr<std::vector<TokenStream>> Complete(int stream_count, int prompt_tokens,
                                                    int max_tokens) {
    std::vector<std::string> bodies;
    for (int index = 0; index < stream_count; ++index, ++key_.request) {
      bodies.push_back(
          CompletionBody(RandomPrompt(ids_, vocab_size_, prompt_tokens, key_), max_tokens));
    }
    WL_ASSIGN_OR_RETURN(std::vector<TokenStream> streams, client_.Complete(bodies));
    for (const TokenStream& stream : streams) {
      WL_RETURN_IF_ERROR(CheckCount("generated", stream.token_count(), max_tokens));
      WL_RETURN_IF_ERROR(CheckCount("counted in the prompt", stream.prompt_count, prompt_tokens));
      WL_RETURN_IF_ERROR(CheckCount("reused", stream.cached_count, 0));
    }
    return streams;
  }

 private:
  static absl::Status CheckCount(const char* what, int64_t count, int64_t asked) {
    if (count == asked) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat(count, " tokens were ", what, ", ", asked, " were asked for"));
  }

  const LoadClient& client_;
  const absl::Span<const int32_t> ids_;
  const int32_t vocab_size_;
  PromptKey key_;  // of the next prompt
};

// The streams ran at one time for half of their tokens, less the first ones.
bool IsLongSpan(const absl::StatusOr<Measurement>& speed) {
  return speed.ok() && 2 * speed->token_count >= speed->received_count - speed->stream_count;
}

absl::StatusOr<Measurement> MeasureDecoding(Measurer& measurer, const BenchPlan& plan, int batch,
                                            int64_t context) {
  const int64_t most_tokens = std::min<int64_t>(int64_t{kMostDecodeFactor} * plan.decode_tokens,
                                                context - plan.decode_prompt);
  for (int tokens = plan.decode_tokens;; tokens *= 2) {
    WL_ASSIGN_OR_RETURN(const auto streams, measurer.Complete(batch, plan.decode_prompt, tokens));
    absl::StatusOr<Measurement> speed = DecodeSpeed(streams, plan.decode_prompt);
    if (IsLongSpan(speed) || int64_t{2} * tokens > most_tokens) return speed;
  }
}

absl::Status CheckRoom(const BenchPlan& plan, const ServiceFacts& facts) {
  if (facts.context_length < plan.longest_sequence()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the service has a context of ", facts.context_length,
                     " tokens, the longest sequence takes ", plan.longest_sequence()));
  }
  if (facts.slot_count < plan.most_streams()) {
    return absl::FailedPreconditionError(absl::StrCat("the service runs ", facts.slot_count,
                                                      " sequences at a time, the bench wants ",
                                                      plan.most_streams()));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t BenchPlan::longest_sequence() const {
  int64_t longest = kWarmUpPrompt + kWarmUpTokens;
  for (const int prompt : prompts) longest = std::max(longest, int64_t{prompt} + 1);
  return batches.empty() ? longest
                         : std::max(longest, int64_t{decode_prompt} + int64_t{decode_tokens});
}

int64_t BenchPlan::wanted_context() const {
  return batches.empty()
             ? longest_sequence()
             : std::max(longest_sequence(),
                        int64_t{decode_prompt} + int64_t{kMostDecodeFactor} * decode_tokens);
}

int BenchPlan::most_streams() const {
  int most = 1;
  for (const int count : batches) most = std::max(most, count);
  if (prompts.empty()) return most;
  for (const int count : concurrent_prompts) most = std::max(most, count);
  return most;
}

absl::StatusOr<ServiceFacts> ReadServiceFacts(const std::string& status_body) {
  json::error_code error;
  const json::value document = json::parse(status_body, error);
  if (error || !document.is_object() || !document.get_object().contains("context_length")) {
    return absl::InvalidArgumentError("/v1/status is not that of a Warpline gateway");
  }
  const json::object& status = document.get_object();
  const json::object model = ObjectAt(status, "model");
  ServiceFacts facts{.version = StringAt(status, "version"),
                     .model = StringAt(model, "name"),
                     .architecture = StringAt(model, "architecture"),
                     .fingerprint = StringAt(model, "fingerprint"),
                     .vocab_size = static_cast<int32_t>(IntAt(model, "vocab_size")),
                     .context_length = IntAt(status, "context_length"),
                     .slot_count = IntAt(status, "slots")};
  const json::value* const stages = status.if_contains("stages");
  if (stages != nullptr && stages->is_array()) {
    for (const json::value& stage : stages->get_array()) {
      if (stage.is_object()) facts.devices.push_back(StringAt(stage.get_object(), "device"));
    }
  }
  if (facts.vocab_size <= 0) {
    return absl::InvalidArgumentError("the service does not tell how many tokens its model has");
  }
  return facts;
}

absl::Status MeasureRun(const LoadClient& client, const BenchPlan& plan,
                        absl::Span<const int32_t> ids, int run_index, BenchRun& run,
                        const std::function<void(const Measurement&)>& on_measured) {
  WL_ASSIGN_OR_RETURN(const std::string status, client.Get("/v1/status"));
  WL_ASSIGN_OR_RETURN(run.facts, ReadServiceFacts(status));
  WL_RETURN_IF_ERROR(CheckRoom(plan, run.facts));
  Measurer measurer(
      client, ids, run.facts.vocab_size,
      {.seed = static_cast<uint64_t>(plan.seed), .run = static_cast<uint64_t>(run_index)});
  WL_RETURN_IF_ERROR(measurer.Complete(1, kWarmUpPrompt, kWarmUpTokens).status());
  const auto keep = [&run, &on_measured](const Measurement& measurement) {
    run.measurements.push_back(measurement);
    on_measured(measurement);
  };
  for (const int prompt : plan.prompts) {
    for (const int count : plan.concurrent_prompts) {
      WL_ASSIGN_OR_RETURN(const auto streams, measurer.Complete(count, prompt, 1));
      WL_ASSIGN_OR_RETURN(const Measurement measurement, PromptSpeed(streams, prompt));
      keep(measurement);
    }
  }
  for (const int batch : plan.batches) {
    WL_ASSIGN_OR_RETURN(const Measurement measurement,
                        MeasureDecoding(measurer, plan, batch, run.facts.context_length));
    keep(measurement);
  }
  return absl::OkStatus();
}

}  // namespace warpline
