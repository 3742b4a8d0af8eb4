#include "client/cli/bench_figures.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"

namespace warpline {
namespace {

double Seconds(SteadyTime begin, SteadyTime end) {
  return std::chrono::duration<double>(end - begin).count();
}

int64_t ReceivedCount(absl::Span<const TokenStream> streams) {
  int64_t count = 0;
  for (const TokenStream& stream : streams) count += stream.token_count();
  return count;
}

absl::Status CheckTokens(absl::Span<const TokenStream> streams) {
  const bool some_empty =
      std::any_of(streams.begin(), streams.end(),
                  [](const TokenStream& stream) { return stream.arrivals.empty(); });
  return some_empty ? absl::FailedPreconditionError("a stream ended without a token")
                    : absl::OkStatus();
}

}  // namespace

std::string Measurement::Name() const {
  if (kind == Kind::kDecode) return absl::StrCat("decode x", stream_count);
  return absl::StrCat("prompt ", size, stream_count > 1 ? absl::StrCat(" x", stream_count) : "");
}

absl::StatusOr<Measurement> PromptSpeed(absl::Span<const TokenStream> streams, int prompt_tokens) {
  if (absl::Status status = CheckTokens(streams); !status.ok()) return status;
  SteadyTime begin = SteadyTime::max();
  SteadyTime end = SteadyTime::min();
  for (const TokenStream& stream : streams) {
    begin = std::min(begin, stream.begin);
    end = std::max(end, stream.arrivals.front().time);
  }
  return Measurement{.kind = Measurement::Kind::kPrompt,
                     .size = prompt_tokens,
                     .stream_count = static_cast<int>(streams.size()),
                     .token_count = static_cast<int64_t>(streams.size()) * prompt_tokens,
                     .received_count = ReceivedCount(streams),
                     .seconds = Seconds(begin, end)};
}

absl::StatusOr<Measurement> DecodeSpeed(absl::Span<const TokenStream> streams, int prompt_tokens) {
  if (absl::Status status = CheckTokens(streams); !status.ok()) return status;
  SteadyTime begin = SteadyTime::min();
  SteadyTime end = SteadyTime::max();
  for (const TokenStream& stream : streams) {
    begin = std::max(begin, stream.arrivals.front().time);
    end = std::min(end, stream.arrivals.back().time);
  }
  int64_t count = 0;
  for (const TokenStream& stream : streams) {
    for (const TokenArrival& arrival : stream.arrivals) {
      if (arrival.time > begin && arrival.time <= end) count += arrival.count;
    }
  }
  if (count == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ", streams.size(),
                     " streams never generated all at one time: ask for more --decode-tokens"));
  }
  return Measurement{.kind = Measurement::Kind::kDecode,
                     .size = prompt_tokens,
                     .stream_count = static_cast<int>(streams.size()),
                     .token_count = count,
                     .received_count = ReceivedCount(streams),
                     .seconds = Seconds(begin, end)};
}

Summary Summarize(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const bool is_odd = values.size() % 2 == 1;
  return {.median = is_odd ? values[middle] : (values[middle - 1] + values[middle]) / 2,
          .least = values.front(),
          .most = values.back()};
}

}  // namespace warpline
