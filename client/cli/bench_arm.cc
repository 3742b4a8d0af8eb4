#include "client/cli/bench_arm.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace warpline {

absl::StatusOr<ServiceOptions> ArmOptions(const ArmBase& base, const std::string& text,
                                          const BenchPlan& plan) {
  ServiceOptions options = base.service;
  CLI::App app;
  app.set_help_flag();
  Flags flags(app, "warpline");
  AddEngineOptions(flags, app, options);
  app.get_option("--model")->required(false);
  // The environment has had its say in the base, which an arm's own options alone replace.
  for (CLI::Option* const option : app.get_options()) option->envname("");
  std::vector<std::string> words;
  for (const std::string& word : CLI::detail::split_up(text)) words.push_back(LongSpelling(word));
  std::reverse(words.begin(), words.end());  // For CLI11.
  try {
    app.parse(words);
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(absl::StrCat("--ab '", text, "': ", error.what()));
  }
  if (options.model != base.service.model) {
    return absl::InvalidArgumentError("--ab: all arms have the same --model");
  }
  if (!base.parallel_given && app.get_option("--parallel")->count() == 0) {
    options.parallel = plan.most_streams();
  }
  if (options.parallel < plan.most_streams()) {
    return absl::InvalidArgumentError(absl::StrCat("--parallel is ", options.parallel, ", but ",
                                                   plan.most_streams(),
                                                   " sequences shall run at one time"));
  }
  const int64_t longest = plan.longest_sequence();
  if (options.ctx_size > 0 && options.ctx_size < longest) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--ctx-size is ", options.ctx_size, ", but the longest sequence has ", longest, " tokens"));
  }
  if (base.model_context > 0 && base.model_context < longest) {
    return absl::InvalidArgumentError(absl::StrCat("the model's context has ", base.model_context,
                                                   " tokens, the longest sequence ", longest,
                                                   ": choose shorter --prompts"));
  }
  if (options.ctx_size == 0) {
    const int64_t wanted = plan.wanted_context();
    options.ctx_size = base.model_context > 0 ? std::min(wanted, base.model_context) : wanted;
  }
  return options;
}

}  // namespace warpline
