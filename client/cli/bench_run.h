// One run of `warpline bench` against a service that is ready: what it is, then every speed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/bench_figures.h"
#include "client/cli/load_client.h"

namespace warpline {

struct BenchPlan {
  std::vector<int> prompts = {26700, 52000, 104000};  // tokens of each
  std::vector<int> concurrent_prompts = {1};          // at one time
  std::vector<int> batches = {1, 8, 32};              // streams that decode at one time
  int decode_tokens = 128;                            // that each stream generates
  int decode_prompt = 128;                            // tokens of the prompt before them
  int64_t seed = 0;                                   // of all prompts

  // The longest sequence of a run without which there is no bench; the context that leaves room for
  // longer streams where the first ones had no common span; how many sequences run at one time.
  int64_t longest_sequence() const;
  int64_t wanted_context() const;
  int most_streams() const;
};

// What the service says of itself.
struct ServiceFacts {
  std::string version;
  std::string model;
  std::string architecture;
  std::string fingerprint;
  int32_t vocab_size = 0;
  int64_t context_length = 0;
  int64_t slot_count = 0;
  std::vector<std::string> devices;  // of the stages in their order
};

absl::StatusOr<ServiceFacts> ReadServiceFacts(const std::string& status_body);

struct BenchRun {
  int arm = 0;                // index
  int repeat = 0;             // index
  double ready_seconds = -1;  // from start to ready; -1: the service was not started for this run
  ServiceFacts facts;
  std::vector<Measurement> measurements;
};

// Measures everything in the plan once and adds it to `run`; calls `on_measured` after each.
// `ids` are the tokens of prompts (empty: all below the vocabulary's size); `run_index` makes the
// prompts of this run its own. Errors: FailedPrecondition when the service is too small for the
// plan, Internal when it counts other tokens than were asked for, and those of LoadClient.
absl::Status MeasureRun(const LoadClient& client, const BenchPlan& plan,
                        absl::Span<const int32_t> ids, int run_index, BenchRun& run,
                        const std::function<void(const Measurement&)>& on_measured);

}  // namespace warpline
