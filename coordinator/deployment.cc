#include "coordinator/deployment.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/stage_memory.h"
#include "model/allocated_bytes.h"
#include "model/device_bytes.h"
#include "proto/grpc_server.h"

namespace warpline {
namespace {

// A step's activations have to fit into one message between hosts, with room for its other fields.
constexpr int64_t kMaxStepBytes = kMaxInternalMessageBytes / 4 * 3;
// Of the memory that weights and the rows of a step leave over; the rest is for everything else on
// the machine.
constexpr double kCacheShare = 0.9;
constexpr double kCardCacheShare = 0.98;  // the same of a card, which serves nobody else

// Whether a stage runs on this machine, where its memory can be known.
bool IsLocalStage(const CoordinatorConfig& config, size_t stage) {
  return config.workers.empty() || IsLocalAddress(config.workers[stage]);
}

// Memory that stages share: that of this machine, or of a card.
struct MemoryPool {
  std::optional<int> device;  // none: the machine's
  std::vector<size_t> stages;
  std::optional<int64_t> free_bytes;  // none: not known
};

std::vector<MemoryPool> PoolsOf(const CoordinatorConfig& config, size_t stage_count) {
  std::vector<MemoryPool> pools;
  if (config.backend != "cuda") pools.push_back({.free_bytes = AvailableMemoryBytes()});
  for (size_t stage = 0; stage < stage_count; ++stage) {
    if (!IsLocalStage(config, stage)) continue;
    const size_t index = stage % config.devices.size();
    const auto is_its = [&](const MemoryPool& pool) {
      return !pool.device.has_value() || *pool.device == config.devices[index];
    };
    auto pool = std::find_if(pools.begin(), pools.end(), is_its);
    if (pool == pools.end()) {
      pool = pools.insert(pools.end(), MemoryPool{.device = config.devices[index]});
      const std::vector<int>& mib = config.device_memory_mib;
      if (!mib.empty()) pool->free_bytes = int64_t{mib[index % mib.size()]} << 20;
    }
    pool->stages.push_back(stage);
  }
  return pools;
}

int64_t MostMessageRows(const ModelSpec& spec) {
  return std::max<int64_t>(1, kMaxStepBytes / (int64_t{spec.residual_width} * 4));
}

// Of one step.
int64_t MostRows(const CoordinatorConfig& config, const ModelSpec& spec, int64_t context) {
  const int64_t chunk = std::min<int64_t>(config.chunk, context);
  return std::min(std::max<int64_t>(chunk, config.parallel), MostMessageRows(spec));
}

int WorkerThreads(const CoordinatorConfig& config) {
  if (config.worker_threads > 0) return config.worker_threads;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

absl::Status NoRoom(const MemoryPool& pool, const StageMemory& taken) {
  const auto mib = [](int64_t bytes) { return bytes >> 20; };
  return absl::FailedPreconditionError(
      absl::StrCat("CUDA device ", *pool.device, " has ", mib(*pool.free_bytes), " MiB free, its ",
                   pool.stages.size(), " stages need ", mib(taken.sum() - taken.caches),
                   " MiB beside caches: weights ", mib(taken.weights), ", steps ", mib(taken.step),
                   ", driver ", mib(taken.process),
                   "; more devices, or a smaller --chunk, --parallel or -c, need less of each"));
}

// What a stage takes, with the pages of `capacity`.
StageMemory MemoryOf(const CoordinatorConfig& config, const Deployment& deployment,
                     const StagePlan& stage, const CapacityPlan& capacity, int64_t step_rows) {
  if (config.backend == "cuda") {
    const DeviceBytes bytes = DeviceBytesOf(*deployment.file, deployment.spec,
                                            {.layers = stage.layers,
                                             .format = FormatOf(config.kv_type),
                                             .page_count = capacity.page_count,
                                             .slot_count = capacity.slot_count,
                                             .max_rows = step_rows,
                                             .max_context = capacity.context});
    return {.weights = bytes.weights,
            .caches = bytes.caches,
            .step = bytes.step,
            .process = kDeviceContextBytes};
  }
  return MemoryOfStage(deployment.spec,
                       {.layers = stage.layers,
                        .weight_bytes = stage.weight_bytes,
                        .kv_type = config.kv_type,
                        .page_count = capacity.page_count,
                        .slot_count = capacity.slot_count,
                        .context = capacity.context,
                        .step_rows = step_rows,
                        .thread_count = WorkerThreads(config),
                        .header_bytes = deployment.header_bytes,
                        .ngrams = {.io = config.ple_io,
                                   .cache_bytes = int64_t{config.ple_cache_mib} << 20,
                                   .table_bytes = deployment.ple_table_bytes}});
}

absl::StatusOr<CapacityPlan> PlanPool(const CoordinatorConfig& config, const Deployment& deployment,
                                      const MemoryPool& pool) {
  CapacityArgs args{
      .context = config.ctx_size > 0 ? config.ctx_size : deployment.spec.context_length,
      .slot_count = config.parallel};
  const int64_t rows = MostRows(config, deployment.spec, args.context);
  StageMemory taken;
  int64_t layer_count = 0;
  for (const size_t stage : pool.stages) {
    const StagePlan& plan = deployment.split.stages[stage];
    const StateBytes state = BytesOfState(deployment.spec, plan.layers, config.kv_type);
    args.page_bytes += state.page;
    args.slot_bytes += state.slot;
    taken.Add(MemoryOf(config, deployment, plan,
                       {.context = args.context, .slot_count = args.slot_count}, rows));
    layer_count += plan.layers.size();
  }
  if (!pool.free_bytes.has_value()) return PlanCapacity(args);
  int64_t left = *pool.free_bytes - (taken.sum() - taken.caches);
  if (pool.device.has_value()) left -= layer_count * kHugePageBytes;  // of caches, by rounding
  if (pool.device.has_value() && left < 0) return NoRoom(pool, taken);
  const double share = pool.device.has_value() ? kCardCacheShare : kCacheShare;
  args.cache_bytes_limit =
      static_cast<int64_t>(static_cast<double>(std::max<int64_t>(0, left)) * share);
  return PlanCapacity(args);
}

// What fits everywhere: pages and slots mean the same on all stages.
absl::StatusOr<CapacityPlan> PlanPools(const CoordinatorConfig& config,
                                       const Deployment& deployment) {
  WL_ASSIGN_OR_RETURN(CapacityPlan least, PlanPool(config, deployment, {}));
  for (const MemoryPool& pool : PoolsOf(config, deployment.split.stages.size())) {
    WL_ASSIGN_OR_RETURN(const CapacityPlan plan, PlanPool(config, deployment, pool));
    if (plan.page_count < least.page_count) least = plan;
  }
  return least;
}

// A line of the plan: bytes under the headings.
void AppendMemory(std::string& text, absl::string_view name, absl::string_view layers,
                  const StageMemory& memory, bool has_ngrams) {
  absl::StrAppendFormat(&text, "%-6s %-12s %14d %14d %14d %14d", name, layers, memory.weights,
                        memory.caches, memory.step, memory.process);
  if (has_ngrams) absl::StrAppendFormat(&text, " %14d", memory.ngrams);
  absl::StrAppendFormat(&text, " %14d\n", memory.sum());
}

// A line for each card: what its stages take, and what it has.
std::string CardText(const CoordinatorConfig& config, const Deployment& deployment) {
  std::string text;
  for (const MemoryPool& pool : PoolsOf(config, deployment.split.stages.size())) {
    StageMemory all;
    for (const size_t stage : pool.stages) {
      all.Add(MemoryOf(config, deployment, deployment.split.stages[stage], deployment.capacity,
                       deployment.max_step_rows));
    }
    absl::StrAppend(&text, "device ", *pool.device, ": ", all.sum(), " bytes of ",
                    pool.free_bytes.has_value()
                        ? absl::StrCat(*pool.free_bytes, " free")
                        : "a card whose free memory is not known (--device-memory says it)",
                    "\n");
  }
  return text;
}

// The table of stages, and what its columns mean.
std::string MemoryText(const CoordinatorConfig& config, const Deployment& deployment) {
  const bool has_ngrams = deployment.spec.ple.present();
  std::string text = absl::StrFormat("%-6s %-12s %14s %14s %14s %14s", "stage", "layers",
                                     "weight bytes", "cache bytes", "step bytes", "process bytes");
  if (has_ngrams) absl::StrAppendFormat(&text, " %14s", "n-gram bytes");
  absl::StrAppendFormat(&text, " %14s\n", "bytes");
  StageMemory all;
  for (size_t index = 0; index < deployment.split.stages.size(); ++index) {
    const StagePlan& stage = deployment.split.stages[index];
    const StageMemory memory =
        MemoryOf(config, deployment, stage, deployment.capacity, deployment.max_step_rows);
    AppendMemory(text, absl::StrCat(index),
                 absl::StrCat("[", stage.layers.begin, ", ", stage.layers.end, ")"), memory,
                 has_ngrams);
    all.Add(memory);
  }
  AppendMemory(text, "all", absl::StrCat("[0, ", deployment.spec.n_layer, ")"), all, has_ngrams);
  if (config.backend == "cuda") {
    absl::StrAppend(&text,
                    "\nmemory of cards; process bytes: the driver's context and the kernels' code, "
                    "an estimate\n",
                    CardText(config, deployment));
  } else {
    absl::StrAppend(&text, "\nprocess bytes: a worker with nothing loaded, the file's header, ",
                    WorkerThreads(config), " compute threads\n");
  }
  if (has_ngrams) {
    absl::StrAppend(&text, "n-gram bytes: rows in memory (--ple-io ", config.ple_io,
                    ", --ple-cache-mib ", config.ple_cache_mib, ") of the table of ",
                    deployment.ple_table_bytes, " bytes that the stage of layer ",
                    deployment.spec.ple.layer, " reads from disk\n");
  }
  return text;
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
  for (int shard = 0; shard < deployment->file->shard_count(); ++shard) {
    deployment->header_bytes += static_cast<int64_t>(deployment->file->HeaderBytes(shard));
  }
  absl::StatusOr<SplitPlan> split =
      config.layer_split.empty() ? BalancedSplit(bytes, config.stage_count())
                                 : ExplicitSplit(bytes, config.stage_count(), config.layer_split);
  if (!split.ok()) return fail(kExitUsage, split.status());
  deployment->split = std::move(*split);
  absl::StatusOr<CapacityPlan> capacity = PlanPools(config, *deployment);
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
  std::string text = MemoryText(config, deployment);
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
