#include "client/cli/service_options.h"

#include <sched.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace warpline {
namespace {

constexpr int64_t kMaxContext = int64_t{1} << 24;
constexpr int kMaxDevice = 1023;

int UsableCores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// Empty when `text` is no list of numbers from 0 to `most`.
std::vector<int> ParseNumbers(const std::string& text, int most) {
  std::vector<int> numbers;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int number = 0;
    if (!absl::SimpleAtoi(part, &number) || number < 0 || number > most) return {};
    numbers.push_back(number);
  }
  return numbers;
}

CLI::Validator DeviceList() {
  return CLI::Validator(
      [](std::string& text) {
        return ParseNumbers(text, kMaxDevice).empty() ? "must be device numbers, such as 0,1" : "";
      },
      "");
}

CLI::Validator MemoryList() {
  return CLI::Validator(
      [](std::string& text) {
        constexpr int kMostMib = 1 << 24;
        return !text.empty() && ParseNumbers(text, kMostMib).empty()
                   ? "must be numbers of MiB, such as 80000"
                   : "";
      },
      "");
}

void Append(std::vector<std::string>& arguments, const std::string& flag,
            const std::string& value) {
  if (value.empty()) return;
  arguments.push_back(flag);
  arguments.push_back(value);
}

}  // namespace

void AddEngineOptions(Flags& flags, CLI::App& command, ServiceOptions& options) {
  flags.Add(command, "-m,--model", options.model, "GGUF file, or shard 1 of several")->required();
  flags.Add(command, "--workers", options.workers, "Worker processes (stages)")
      ->check(IntegerRange(1, 512));
  flags
      .Add(command, "-t,--threads", options.threads,
           "Threads for all workers together, at least one each (0: all cores)")
      ->check(IntegerRange(0, 4096));
  flags
      .Add(command, "-c,--ctx-size", options.ctx_size,
           "Longest sequence in tokens (llama.cpp's -c is the total over all slots); 0: the "
           "model's context length")
      ->check(IntegerRange(0, kMaxContext));
  flags.Add(command, "--parallel", options.parallel, "Most sequences running at once (-np)")
      ->check(IntegerRange(1, 1024));
  flags
      .Add(command, "--chunk", options.chunk,
           "Most rows of a prompt chunk (0: 512, or 4096 with --backend cuda)")
      ->check(IntegerRange(0, 1 << 20));
  flags.Add(command, "--layer-split", options.layer_split,
            "First layer of each later stage, such as 10,20; empty or auto: balanced by bytes");
  flags.Add(command, "--kv-type", options.kv_type, "Type of cached keys and values (-ctk, -ctv)")
      ->check(CLI::IsMember({"f32", "f16", "q8_0"}));
  flags.Add(command, "--edge", options.edge, "Hand-off between stages")
      ->check(CLI::IsMember({"auto", "shm", "grpc"}));
  flags.Add(command, "--backend", options.backend, "What the workers compute with: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  flags
      .Add(command, "--device", options.device,
           "CUDA devices of the workers, such as 0,1; with more workers than devices they share")
      ->check(DeviceList());
  flags
      .Add(
          command, "--device-memory", options.device_memory,
          "Memory to plan with on these devices, in MiB: one number for all, or one for each, such "
          "as 80000,80000 (empty: what is free there)")
      ->check(MemoryList());
  flags
      .Add(command, "--tiles", options.tiles,
           "How cuda multiplies: wgmma, mma, wmma (tiles of tensor cores), off (decoded to halves, "
           "then cuBLAS), auto (the best that each card has)")
      ->check(CLI::IsMember({"auto", "wgmma", "mma", "wmma", "off"}));
  flags
      .Add(command, "--ple-io", options.ple_io,
           "How rows of an n-gram table are read: direct (past the page cache), mmap (through it), "
           "ram (a copy), auto (what is measured to be fastest)")
      ->check(CLI::IsMember({"auto", "direct", "mmap", "ram"}));
  flags
      .Add(command, "--ple-cache-mib", options.ple_cache_mib,
           "Memory for rows of an n-gram table, in MiB (0: none)")
      ->check(IntegerRange(0, 1 << 20));
  flags
      .Add(command, "--ple-timeout-s", options.ple_timeout_s,
           "Longest wait for the n-gram rows of one step, in seconds")
      ->check(IntegerRange(1, 3600));
  flags
      .Add(command, "--load-timeout-s", options.load_timeout_s,
           "Longest time without progress of a worker that loads its layers, in seconds")
      ->check(IntegerRange(1, 86400));
  flags.Add(command, "--chat-template", options.chat_template,
            "Chat template: a built-in name (chatml) or a file");
  flags.Add(command, "--alias", options.alias, "Model name shown to clients");
  flags.AddFlag(command, "--verify", options.verify,
                "Hash the whole model file at start, not only parts of it");
}

void AddFrontOptions(Flags& flags, CLI::App& command, ServiceOptions& options) {
  // A resolver would take an empty one for every address of the machine.
  const CLI::Validator address(
      [](std::string& text) { return text.empty() ? "must name an address" : ""; }, "");
  flags.Add(command, "--host", options.gateway_host, "Address of the REST gateway")->check(address);
  flags.Add(command, "--port", options.gateway_port, "Port of the REST gateway (0: any free one)")
      ->check(IntegerRange(0, 65535));
  flags.Add(command, "--grpc-host", options.grpc_host, "Address of the gRPC service")
      ->check(address);
  flags
      .Add(command, "--grpc-port", options.grpc_port,
           "Port of the gRPC service (0: any free one, -1: none)")
      ->check(IntegerRange(-1, 65535));
  flags.Add(command, "--api-key", options.api_key, "Key that REST clients must send");
  flags.MarkSecret("api-key");
  flags.Add(command, "--cors-origin", options.cors_origin,
            "Origin that browsers may call from (empty: none)");
  flags.AddFlag(command, "--strict-model", options.strict_model,
                "Refuse requests that name another model");
  flags
      .Add(command, "--drain-seconds", options.drain_seconds,
           "How long running requests may go on after SIGTERM")
      ->check(IntegerRange(0, 86400));
}

std::vector<int> ServiceDevices(const ServiceOptions& options) {
  return ParseNumbers(options.device, kMaxDevice);
}

std::string ConflictOf(const ServiceOptions& options) {
  if (options.backend != "cpu" || options.tiles == "auto") return "";
  return absl::StrCat("--tiles ", options.tiles, " needs --backend cuda");
}

int WorkerDevice(const ServiceOptions& options, int index) {
  const std::vector<int> devices = ServiceDevices(options);
  return devices.empty() ? 0 : devices[static_cast<size_t>(index) % devices.size()];
}

std::vector<int> WorkerThreads(const ServiceOptions& options) {
  const int total = options.threads > 0 ? options.threads : UsableCores();
  const int workers = options.workers;
  std::vector<int> shares(static_cast<size_t>(workers), 1);
  for (int index = 0; index < workers; ++index) {
    shares[index] = std::max(1, total / workers + (index < total % workers ? 1 : 0));
  }
  return shares;
}

std::string GrpcAddress(const ServiceOptions& options) {
  const std::string& host = options.grpc_host;
  const bool is_bare_ipv6 = absl::StrContains(host, ':') && !absl::StartsWith(host, "[");
  return is_bare_ipv6 ? absl::StrCat("[", host, "]:", options.grpc_port)
                      : absl::StrCat(host, ":", options.grpc_port);
}

std::vector<std::string> ServeArguments(const ServiceOptions& options) {
  std::vector<std::string> arguments = {"serve"};
  Append(arguments, "--model", options.model);
  Append(arguments, "--workers", absl::StrCat(options.workers));
  Append(arguments, "--threads", absl::StrCat(options.threads));
  Append(arguments, "--ctx-size", absl::StrCat(options.ctx_size));
  Append(arguments, "--parallel", absl::StrCat(options.parallel));
  Append(arguments, "--chunk", absl::StrCat(options.chunk));
  Append(arguments, "--layer-split", options.layer_split);
  Append(arguments, "--kv-type", options.kv_type);
  Append(arguments, "--edge", options.edge);
  Append(arguments, "--backend", options.backend);
  Append(arguments, "--device", options.device);
  Append(arguments, "--device-memory", options.device_memory);
  Append(arguments, "--tiles", options.tiles);
  Append(arguments, "--ple-io", options.ple_io);
  Append(arguments, "--ple-cache-mib", absl::StrCat(options.ple_cache_mib));
  Append(arguments, "--ple-timeout-s", absl::StrCat(options.ple_timeout_s));
  Append(arguments, "--load-timeout-s", absl::StrCat(options.load_timeout_s));
  Append(arguments, "--chat-template", options.chat_template);
  Append(arguments, "--alias", options.alias);
  if (options.verify) arguments.push_back("--verify");
  Append(arguments, "--host", options.gateway_host);
  Append(arguments, "--port", absl::StrCat(options.gateway_port));
  if (options.no_gateway) arguments.push_back("--no-gateway");
  Append(arguments, "--grpc-host", options.grpc_host);
  arguments.push_back(absl::StrCat("--grpc-port=", options.grpc_port));
  Append(arguments, "--cors-origin", options.cors_origin);
  if (options.strict_model) arguments.push_back("--strict-model");
  Append(arguments, "--drain-seconds", absl::StrCat(options.drain_seconds));
  Append(arguments, "--socket-dir", options.socket_dir);
  return arguments;
}

std::vector<std::string> SecretVariables(const ServiceOptions& options) {
  if (options.api_key.empty()) return {};
  return {absl::StrCat("WARPLINE_API_KEY=", options.api_key)};
}

}  // namespace warpline
