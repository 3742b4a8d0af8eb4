// One answer on the terminal: streams its text to stdout, shows a bar while a long prompt is read,
// counts tokens.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/flags.h"
#include "client/cli/inference_client.h"

namespace warpline {

struct GenerationOptions {
  int max_tokens = 0;  // 0: the rest of the context
  float temperature = 0.8F;
  int top_k = 40;
  float top_p = 0.95F;
  float min_p = 0.05F;
  float repetition_penalty = 1;
  int64_t seed = -1;  // below 0: drawn
};

void AddGenerationOptions(Flags& flags, CLI::App& command, GenerationOptions& options);
void SetSampling(const GenerationOptions& options, v1::GenerateRequest& request);

struct Answer {
  absl::Status status;  // Cancelled when Ctrl-C ended it; what came before is in `text`
  std::string text;
  v1::Usage usage;
  double first_token_seconds = 0;
  double tokens_per_second = 0;  // after the first token
};

Answer StreamAnswer(InferenceClient& client, const v1::GenerateRequest& request);
// "512 prompt tokens in 0.43 s, 128 tokens at 98.1 tokens/s".
std::string SpeedText(const Answer& answer);

}  // namespace warpline
