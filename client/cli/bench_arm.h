// The options that an arm of `warpline bench` starts its service with.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/bench_run.h"
#include "client/cli/service_options.h"

namespace warpline {

struct ArmBase {
  ServiceOptions service;       // what all arms have
  bool parallel_given = false;  // otherwise as many sequences as the plan has streams
  int64_t model_context = 0;    // tokens; 0: the file does not say
};

// `text` holds options of `warpline serve`, such as "--chunk 64 -t 2"; they replace those of
// `base`. Without -c the context is what the plan takes. Errors: InvalidArgument.
absl::StatusOr<ServiceOptions> ArmOptions(const ArmBase& base, const std::string& text,
                                          const BenchPlan& plan);

}  // namespace warpline
