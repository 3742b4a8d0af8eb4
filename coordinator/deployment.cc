#include "coordinator/deployment.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/flags.h"
#include "base/log.h"
#include "model/row_widths.h"
#include "proto/grpc_server.h"

namespace warpline {
namespace {

// A step's activations have to fit into one message between hosts, with room for its other fields.
constexpr int64_t kMaxStepBytes = kMaxInternalMessageBytes / 4 * 3;
// Of the memory that weights and the rows of a step leave over; the rest is for everything else on
// the machine.
constexpr double kCacheShare = 0.9;

int64_t TotalWeights(const SplitPlan& split) {
  int64_t bytes = 0;
  for (const StagePlan& stage : split.stages) bytes += stage.weight_bytes;
  return bytes;
}

// Whether a stage runs on this machine, where its memory can be known.
bool IsLocalStage(const CoordinatorConfig& config, size_t stage) {
  return config.workers.empty() || IsLocalAddress(config.workers[stage]);
}

int64_t MostMessageRows(const ModelSpec& spec) {
  return std::max<int64_t>(1, kMaxStepBytes / (int64_t{spec.residual_width} * 4));
}

// Of one step.
int64_t MostRows(const CoordinatorConfig& config, const ModelSpec& spec, int64_t context) {
  const int64_t chunk = std::min<int64_t>(config.chunk, context);
  return std::min(std::max<int64_t>(chunk, config.parallel), MostMessageRows(spec));
}

CapacityArgs ArgsOf(const CoordinatorConfig& config, const Deployment& deployment) {
  CapacityArgs args{
      .context = config.ctx_size > 0 ? config.ctx_size : deployment.spec.context_length,
      .slot_count = config.parallel};
  int64_t taken_bytes = 0;
  for (size_t stage = 0; stage < deployment.split.stages.size(); ++stage) {
    if (!IsLocalStage(config, stage)) continue;
    const StagePlan& plan = deployment.split.stages[stage];
    const StateBytes state = BytesOfState(deployment.spec, plan.layers, config.kv_type);
    args.page_bytes += state.page;
    args.slot_bytes += state.slot;
    const int64_t rows = MostRows(config, deployment.spec, args.context);
    taken_bytes +=
        plan.weight_bytes + StepBytesOf(deployment.spec, plan.layers, rows, args.context);
  }
  if (const std::optional<int64_t> available = AvailableMemoryBytes(); available.has_value()) {
    const auto left = static_cast<double>(std::max<int64_t>(0, *available - taken_bytes));
    args.cache_bytes_limit = static_cast<int64_t>(left * kCacheShare);
  }
  return args;
}

}  // namespace

std::unique_ptr<Deployment> PlanDeployment(const CoordinatorConfig& config,
                                           DeploymentError& error) {
  const auto fail = [&error](int exit_code, const absl::Status& status) {
    error = {.exit_code = exit_code, .message = std::string(status.message())};
    return nullptr;
  };
  auto deployment = std::make_unique<Deployment>();
  absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(config.model);
  if (!file.ok()) return fail(kExitModelFile, file.status());
  deployment->file = std::move(*file);
  for (const std::string& warning : deployment->file->warnings()) LogWarning(warning);
  absl::StatusOr<ModelSpec> spec = ModelSpec::FromGguf(*deployment->file);
  if (!spec.ok()) return fail(kExitModelFile, spec.status());
  deployment->spec = std::move(*spec);
  for (const std::string& warning : deployment->spec.warnings) LogWarning(warning);
  const ModelBytes bytes = BytesOf(deployment->spec, *deployment->file);
  deployment->ple_table_bytes = bytes.ple_table;
  absl::StatusOr<SplitPlan> split =
      config.layer_split.empty() ? BalancedSplit(bytes, config.stage_count())
                                 : ExplicitSplit(bytes, config.stage_count(), config.layer_split);
  if (!split.ok()) return fail(kExitUsage, split.status());
  deployment->split = std::move(*split);
  absl::StatusOr<CapacityPlan> capacity = PlanCapacity(ArgsOf(config, *deployment));
  if (!capacity.ok()) return fail(kExitFailure, capacity.status());
  deployment->capacity = *capacity;
  if (capacity->context < capacity->configured_context) {
    LogWarning("context lowered from ", capacity->configured_context, " to ", capacity->context,
               " tokens: no longer sequence fits into memory");
  }
  const int64_t most_rows = MostMessageRows(deployment->spec);
  deployment->max_chunk_rows = static_cast<int>(
      std::min<int64_t>({config.chunk, most_rows, std::max<int64_t>(1, capacity->context)}));
  deployment->max_step_rows = static_cast<int>(
      std::min<int64_t>(std::max(deployment->max_chunk_rows, config.parallel), most_rows));
  return deployment;
}

std::string PlanText(const CoordinatorConfig& config, const Deployment& deployment) {
  const CapacityPlan& capacity = deployment.capacity;
  std::string text = absl::StrFormat("%-6s %-12s %16s %16s %16s\n", "stage", "layers",
                                     "weight bytes", "cache bytes", "step bytes");
  for (size_t index = 0; index < deployment.split.stages.size(); ++index) {
    const StagePlan& stage = deployment.split.stages[index];
    const StateBytes state = BytesOfState(deployment.spec, stage.layers, config.kv_type);
    const int64_t cache = state.page * capacity.page_count + state.slot * capacity.slot_count;
    const int64_t step =
        StepBytesOf(deployment.spec, stage.layers, deployment.max_step_rows, capacity.context);
    absl::StrAppendFormat(&text, "%-6d %-12s %16d %16d %16d\n", index,
                          absl::StrCat("[", stage.layers.begin, ", ", stage.layers.end, ")"),
                          stage.weight_bytes, cache, step);
  }
  absl::StrAppendFormat(&text, "%-6s %-12s %16d\n", "all",
                        absl::StrCat("[0, ", deployment.spec.n_layer, ")"),
                        TotalWeights(deployment.split));
  if (deployment.spec.ple.present()) {
    absl::StrAppend(&text, "\nn-gram table of ", deployment.ple_table_bytes,
                    " bytes, read from disk by the stage of layer ", deployment.spec.ple.layer,
                    "\n");
  }
  absl::StrAppend(&text, "\nlongest sequence ", capacity.context, " tokens");
  if (capacity.context < capacity.configured_context) {
    absl::StrAppend(&text, " (lowered from ", capacity.configured_context, " to fit)");
  }
  absl::StrAppend(&text, ", ", capacity.slot_count, " sequences at once, ", capacity.page_count,
                  " cache pages of ", kPageTokens, " tokens\n");
  const int64_t full = capacity.page_count / std::max<int64_t>(1, PagesFor(capacity.context));
  absl::StrAppend(&text, "of the longest, ", std::min<int64_t>(full, capacity.slot_count),
                  " fit at once\n");
  return text;
}

}  // namespace warpline
