#include "coordinator/config.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/flags.h"

namespace warpline {
namespace {

constexpr char kProgram[] = "warpline-coordinator";
constexpr int kMaxStages = 512;
constexpr int64_t kMaxContext = int64_t{1} << 24;
constexpr int kMaxParallel = 1024;
constexpr int kMaxChunk = 1 << 20;
constexpr int kMaxDevice = 1023;
constexpr int kMaxDeviceMemoryMib = 1 << 24;

// What the flags give before it is split and named.
struct RawOptions {
  std::string listen;
  std::string layer_split;
  std::string kv_type = "f16";
  std::string edge = "auto";
  std::string device = "0";
  std::string device_memory;
};

void AddOptions(Flags& flags, CLI::App& app, CoordinatorConfig& config, RawOptions& raw) {
  flags.Add(app, "-m,--model", config.model, "GGUF file, or shard 1 of several")->required();
  flags.Add(app, "--worker", config.workers,
            "Address of a worker (unix:/path or host:port); once for each stage, in order");
  flags
      .Add(app, "--worker-count", config.worker_count,
           "Workers to plan for when --print-plan is given without addresses")
      ->check(IntegerRange(1, kMaxStages));
  flags.Add(app, "--listen", raw.listen,
            "Where clients connect: unix:/path or host:port, several with commas");
  flags
      .Add(app, "-c,--ctx-size", config.ctx_size,
           "Longest sequence in tokens (llama.cpp's -c is the total over all slots); 0: the "
           "model's context length")
      ->check(IntegerRange(0, kMaxContext));
  flags.Add(app, "--parallel", config.parallel, "Most sequences running at once (-np)")
      ->check(IntegerRange(1, kMaxParallel));
  flags
      .Add(app, "--chunk", config.chunk,
           "Most rows of a prompt chunk; 0: 512, or 4096 where the workers compute with cuda")
      ->check(IntegerRange(0, kMaxChunk));
  flags.Add(app, "--layer-split", raw.layer_split,
            "First layer of each later stage, such as 10,20; empty or auto: balanced by bytes");
  flags.Add(app, "--kv-type", raw.kv_type, "Type of cached keys and values (-ctk, -ctv)")
      ->check(CLI::IsMember({"f32", "f16", "q8_0"}));
  flags.Add(app, "--edge", raw.edge, "Hand-off between stages")
      ->check(CLI::IsMember({"auto", "shm", "grpc"}));
  flags
      .Add(app, "--backend", config.backend,
           "What the workers compute with, for the plan of memory: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  flags.Add(app, "--device", raw.device,
            "CUDA devices of the workers in turn, such as 0,1, for the plan of memory");
  flags.Add(app, "--device-memory", raw.device_memory,
            "Memory that is free on each of these devices, in MiB: one number for all, or one for "
            "each; empty: not known");
  flags
      .Add(app, "--worker-threads", config.worker_threads,
           "Compute threads of one worker, for the plan of memory (0: all cores)")
      ->check(IntegerRange(0, 1024));
  flags
      .Add(app, "--ple-io", config.ple_io,
           "How workers read rows of an n-gram table, for the plan of memory: auto, direct, mmap, "
           "ram")
      ->check(CLI::IsMember({"auto", "direct", "mmap", "ram"}));
  flags
      .Add(app, "--ple-cache-mib", config.ple_cache_mib,
           "Memory of a worker for rows of an n-gram table, in MiB, for the plan of memory")
      ->check(IntegerRange(0, 1 << 20));
  flags.Add(app, "--queue", config.queue, "Requests that may wait for a slot")
      ->check(IntegerRange(64, 65536));
  flags.Add(app, "--chat-template", config.chat_template,
            "Chat template: a built-in name (chatml) or a file; empty: the model's own");
  flags.Add(app, "--alias", config.alias, "Model name shown to clients");
  flags.Add(app, "--secret-file", config.secret_file,
            "File with the secret shared with the workers; needed beyond this machine");
  flags
      .Add(app, "--load-timeout-s", config.load_timeout_s,
           "Longest time without progress of a worker that loads its layers, in seconds")
      ->check(IntegerRange(1, 86400));
  flags
      .Add(app, "--request-timeout", config.request_timeout,
           "For a generation or evaluation whose client sets no deadline, s")
      ->check(IntegerRange(1, 7 * 86400));
  flags
      .Add(app, "--drain-seconds", config.drain_seconds,
           "How long running requests may go on after SIGTERM")
      ->check(IntegerRange(0, 86400));
  flags
      .Add(app, "--watch-fd", config.watch_fd,
           "Inherited descriptor; the program ends when its other end is closed")
      ->check(OpenDescriptor());
  flags.AddFlag(app, "--print-plan", config.print_plan,
                "Print what each stage would hold and what fits, then exit");
  flags.AddFlag(app, "--verify", config.verify, "Hash the whole model file, not only parts of it");
}

// Empty when all is well.
std::string TakeLayerSplit(const std::string& text, std::vector<int>& first_layers) {
  if (text.empty() || text == "auto") return "";
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int layer = 0;
    if (!absl::SimpleAtoi(part, &layer)) {
      return absl::StrCat("--layer-split: '", std::string(part),
                          "' is no layer number; expected auto or ascending numbers from 1 on, "
                          "such as 10,20");
    }
    first_layers.push_back(layer);
  }
  return "";
}

// Empty when all is well. `text` empty gives none.
std::string TakeNumbers(absl::string_view option, const std::string& text, int most,
                        std::vector<int>& numbers) {
  numbers.clear();
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    if (text.empty()) return "";
    int number = 0;
    if (!absl::SimpleAtoi(part, &number) || number < 0 || number > most) {
      return absl::StrCat(option, ": '", std::string(part), "' is no number from 0 to ", most,
                          "; expected a list such as 0,1");
    }
    numbers.push_back(number);
  }
  return "";
}

std::string TakeDevices(const RawOptions& raw, CoordinatorConfig& config) {
  std::string problem = TakeNumbers("--device", raw.device, kMaxDevice, config.devices);
  if (!problem.empty()) return problem;
  if (config.devices.empty()) return "--device names no device";
  problem = TakeNumbers("--device-memory", raw.device_memory, kMaxDeviceMemoryMib,
                        config.device_memory_mib);
  if (!problem.empty()) return problem;
  const size_t count = config.device_memory_mib.size();
  if (count > 1 && count != config.devices.size()) {
    return absl::StrCat("--device-memory has ", count, " numbers, --device ",
                        config.devices.size());
  }
  return "";
}

std::string TakeRaw(const RawOptions& raw, CoordinatorConfig& config) {
  for (const absl::string_view address : absl::StrSplit(raw.listen, ',', absl::SkipEmpty())) {
    config.listen.emplace_back(address);
  }
  config.kv_type = raw.kv_type == "f32"    ? v1::KV_CACHE_TYPE_F32
                   : raw.kv_type == "q8_0" ? v1::KV_CACHE_TYPE_Q8_0
                                           : v1::KV_CACHE_TYPE_F16;
  config.edge = raw.edge == "shm"    ? v1::EDGE_KIND_SHM
                : raw.edge == "grpc" ? v1::EDGE_KIND_GRPC
                                     : v1::EDGE_KIND_AUTO;
  // Devices compute longer chunks faster; processors gain nothing from them.
  if (config.chunk == 0) config.chunk = config.backend == "cuda" ? 4096 : 512;
  std::string problem = TakeLayerSplit(raw.layer_split, config.layer_split);
  if (problem.empty()) problem = TakeDevices(raw, config);
  if (!problem.empty()) return problem;
  if (config.stage_count() == 0) {
    return "--worker is missing (with --print-plan, --worker-count does)";
  }
  if (config.stage_count() > kMaxStages) {
    return absl::StrCat(config.stage_count(), " workers, at most ", kMaxStages);
  }
  if (config.print_plan) return "";
  if (config.workers.empty()) return "--worker is missing: one address for each stage";
  if (config.listen.empty()) return "--listen is missing: unix:/path or host:port";
  return "";
}

}  // namespace

std::optional<int> ReadConfig(int argc, const char* const* argv, CoordinatorConfig& config) {
  CLI::App app("Coordinates the worker processes that hold a model's layers and serves clients.");
  Flags flags(app, kProgram);
  RawOptions raw;
  AddOptions(flags, app, config, raw);
  if (const std::optional<int> code = flags.Parse(argc, argv); code.has_value()) return code;
  const std::string problem = TakeRaw(raw, config);
  if (!problem.empty()) return UsageError(kProgram, problem);
  return std::nullopt;
}

}  // namespace warpline
