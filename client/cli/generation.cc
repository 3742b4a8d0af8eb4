#include "client/cli/generation.h"

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "client/cli/progress_bar.h"

namespace warpline {

void AddGenerationOptions(Flags& flags, CLI::App& command, GenerationOptions& options) {
  flags
      .Add(command, "-n,--max-tokens", options.max_tokens,
           "Most tokens of an answer (0: the rest of the context)")
      ->check(IntegerRange(0, int64_t{1} << 24));
  flags.Add(command, "--temperature", options.temperature, "Temperature (0: greedy)")
      ->check(CLI::Range(0.0F, 1e30F));
  flags.Add(command, "--top-k", options.top_k, "Draw among the k most probable tokens (0: off)")
      ->check(IntegerRange(0, 1 << 30));
  flags
      .Add(command, "--top-p", options.top_p,
           "Draw among the most probable tokens of this total probability (1: off)")
      ->check(CLI::Range(0.0F, 1.0F));
  flags
      .Add(command, "--min-p", options.min_p,
           "Leave out tokens less probable than this part of the best (0: off)")
      ->check(CLI::Range(0.0F, 1.0F));
  flags
      .Add(command, "--repeat-penalty", options.repetition_penalty,
           "Penalty of repeated tokens (1: off)")
      ->check(CLI::Range(0.01F, 100.0F));
  flags.Add(command, "-s,--seed", options.seed, "Seed of the draws (-1: drawn)")
      ->check(IntegerRange(-1, INT64_MAX));
}

void SetSampling(const GenerationOptions& options, v1::GenerateRequest& request) {
  v1::SamplingOptions& sampling = *request.mutable_sampling();
  sampling.set_temperature(options.temperature);
  sampling.set_top_k(options.top_k);
  sampling.set_top_p(options.top_p);
  sampling.set_min_p(options.min_p);
  sampling.set_repetition_penalty(options.repetition_penalty);
  if (options.seed >= 0) sampling.set_seed(static_cast<uint64_t>(options.seed));
  if (options.max_tokens > 0) request.set_max_tokens(options.max_tokens);
}

Answer StreamAnswer(InferenceClient& client, const v1::GenerateRequest& request) {
  Answer answer;
  ProgressBar bar;
  const SteadyTime begin = Now();
  SteadyTime first = begin;
  SteadyTime last = begin;
  int token_count = 0;
  const auto show = [&answer, &bar](const std::string& text) {
    if (text.empty()) return;
    bar.Clear();
    std::cout << text << std::flush;
    answer.text += text;
  };
  answer.status = client.Generate(request, [&](const v1::GenerateResponse& event) -> absl::Status {
    if (event.has_progress()) {
      const double done = event.progress().prompt_done();
      bar.Show(absl::StrCat("reading ", event.progress().prompt_tokens(), " tokens"),
               done / event.progress().prompt_tokens());
    } else if (event.has_delta()) {
      last = Now();
      if (token_count == 0) first = last;
      token_count += event.delta().token_ids_size();
      show(event.delta().text());
    } else if (event.has_finished()) {
      show(event.finished().text());
      answer.usage = event.finished().usage();
    }
    // Nobody would read what else comes.
    if (!std::cout) return absl::UnavailableError("standard output cannot be written");
    return absl::OkStatus();
  });
  answer.first_token_seconds = std::chrono::duration<double>(first - begin).count();
  const double seconds = std::chrono::duration<double>(last - first).count();
  if (token_count > 1 && seconds > 0) answer.tokens_per_second = (token_count - 1) / seconds;
  return answer;
}

std::string SpeedText(const Answer& answer) {
  return absl::StrFormat("%d prompt tokens, first token after %.2f s, %d tokens at %.1f tokens/s",
                         answer.usage.prompt_tokens(), answer.first_token_seconds,
                         answer.usage.completion_tokens(), answer.tokens_per_second);
}

}  // namespace warpline
