#include "client/cli/bench_command.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "client/cli/bench_arm.h"
#include "client/cli/bench_report.h"
#include "client/cli/bench_run.h"
#include "client/cli/bench_tokens.h"
#include "client/cli/connection.h"
#include "client/cli/local_service.h"
#include "client/cli/progress_bar.h"
#include "model/gguf.h"

namespace warpline {
namespace {

constexpr int64_t kMaxSeed = int64_t{1} << 53;  // What every reader of JSON keeps exactly.

struct BenchOptions {
  ServiceOptions service;
  BenchPlan plan;
  std::string url;
  std::vector<std::string> ab;
  int repeat = 3;
  int timeout_seconds = 600;
  std::string json_file;
  std::string plot_file;
  const CLI::Option* parallel_option = nullptr;
  const CLI::Option* seed_option = nullptr;
};

// What a bench is made of, once its options are understood.
struct Bench {
  BenchReport report;
  std::vector<ServiceOptions> services;  // of the arms; empty: measure `target`
  HttpTarget target;
  std::vector<int32_t> ids;  // tokens of prompts; empty: all
  int repeat = 1;
  int timeout_seconds = 0;
  std::string log_level;
};

// This process's arguments, less the values of secrets.
std::vector<std::string> CommandLine() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::vector<std::string> words = absl::StrSplit(text, '\0');
  if (!words.empty() && words.back().empty()) words.pop_back();
  for (size_t index = 0; index < words.size(); ++index) {
    if (words[index] == "--api-key" && index + 1 < words.size()) words[index + 1] = "***";
    if (absl::StartsWith(words[index], "--api-key=")) words[index] = "--api-key=***";
  }
  return words;
}

void EraseZeros(std::vector<int>& values) {
  values.erase(std::remove(values.begin(), values.end(), 0), values.end());
}

// A port of this machine that nobody listens on now; 0 when there is none.
int FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd.get(), name, size) != 0 || getsockname(fd.get(), name, &size) != 0) return 0;
  return ntohs(address.sin_port);
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

// The file's part of the preparations: ordinary tokens, context. A value: the exit code to end
// with.
std::optional<int> ReadModel(const std::string& path, Bench& bench, int64_t& context) {
  const auto refuse = [](const absl::Status& status) {
    ReportFailure(status);
    return kExitModelFile;
  };
  const absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(path);
  if (!file.ok()) return refuse(file.status());
  absl::StatusOr<std::vector<int32_t>> ids = OrdinaryTokens(**file);
  if (!ids.ok()) return refuse(Annotate(ids.status(), path));
  bench.ids = *std::move(ids);
  const std::string architecture = (*file)->GetString("general.architecture").value_or("");
  context = (*file)->GetInt(absl::StrCat(architecture, ".context_length")).value_or(0);
  return std::nullopt;
}

// A value: the exit code to end with, the message has been printed.
std::optional<int> Prepare(const BenchOptions& options, Bench& bench) {
  const auto usage = [](absl::string_view message) {
    return UsageError("warpline", std::string(message));
  };
  if (options.service.model.empty() && options.url.empty()) {
    return usage("--model or --url is required");
  }
  const BenchPlan& plan = bench.report.plan;
  if (plan.prompts.empty() && plan.batches.empty()) {
    return usage("nothing to measure: --prompts and --batch are both 0");
  }
  ArmBase base{.service = options.service, .parallel_given = options.parallel_option->count() > 0};
  if (!options.service.model.empty()) {
    const std::optional<int> code = ReadModel(options.service.model, bench, base.model_context);
    if (code.has_value()) return code;
  }
  if (!options.url.empty()) {
    absl::StatusOr<HttpTarget> target = ParseHttpUrl(options.url);
    if (!target.ok()) return usage(absl::StrCat("--url: ", target.status().message()));
    bench.target = *std::move(target);
    bench.report.arms.emplace_back();
    return std::nullopt;
  }
  for (const std::string& text : options.ab.empty() ? std::vector<std::string>{""} : options.ab) {
    absl::StatusOr<ServiceOptions> service = ArmOptions(base, text, plan);
    if (!service.ok()) return usage(service.status().message());
    bench.report.arms.push_back({.options = text, .serve_arguments = ServeArguments(*service)});
    bench.services.push_back(*std::move(service));
  }
  return std::nullopt;
}

// Starts the service of an arm and waits; null with the exit code when it does not get ready.
std::unique_ptr<LocalService> StartService(const Bench& bench, int arm, HttpTarget& target,
                                           int& exit_code) {
  ServiceOptions options = bench.services[arm];
  options.gateway_port = FreePort();
  target.host = options.gateway_host;
  target.port = absl::StrCat(options.gateway_port);
  absl::StatusOr<std::unique_ptr<LocalService>> service =
      LocalService::Start(options, bench.log_level);
  if (!service.ok()) {
    exit_code = ReportFailure(service.status());
    return nullptr;
  }
  ProgressBar bar;
  exit_code = (*service)->WaitUntilReady([&bar](absl::string_view status) {
    const double loaded = LoadedFraction(status);
    bar.Show(loaded >= 0 ? "loading the model" : status, loaded);
  });
  return exit_code < 0 ? *std::move(service) : nullptr;
}

// Makes run `index` and adds it to the report; the exit code.
int MakeRun(Bench& bench, int index) {
  const int arm_count = static_cast<int>(bench.report.arms.size());
  bench.report.runs.push_back({.arm = index % arm_count, .repeat = index / arm_count});
  BenchRun& run = bench.report.runs.back();
  const std::string name =
      absl::StrCat("run ", index + 1, " of ", bench.repeat * arm_count,
                   arm_count > 1 ? absl::StrCat(", arm ", ArmName(run.arm)) : "");
  HttpTarget target = bench.target;
  std::unique_ptr<LocalService> service;
  if (!bench.services.empty()) {
    const SteadyTime begin = Now();
    int exit_code = -1;
    service = StartService(bench, run.arm, target, exit_code);
    if (service == nullptr) {
      bench.report.error = absl::StrCat(name, ": the service did not get ready");
      std::cerr << "warpline: " << bench.report.error << std::endl;
      return exit_code;
    }
    run.ready_seconds = SecondsSince(begin);
    std::cerr << absl::StrFormat("%s: ready after %.2f s", name, run.ready_seconds) << std::endl;
  } else {
    std::cerr << name << std::endl;
  }
  const LoadClient client(target, bench.timeout_seconds);
  const absl::Status status =
      MeasureRun(client, bench.report.plan, bench.ids, index, run, [](const Measurement& speed) {
        std::cerr << absl::StrFormat("  %-20s %.2f tokens/s (%d tokens in %.3f s)", speed.Name(),
                                     speed.tokens_per_second(), speed.token_count, speed.seconds)
                  << std::endl;
      });
  if (status.ok()) return kExitOk;
  bench.report.error = absl::StrCat(name, ": ", status.message());
  return ReportFailure(absl::Status(status.code(), bench.report.error));
}

void PrintHead(const BenchReport& report, const std::vector<int32_t>& ids) {
  const ServiceFacts& facts = report.runs.front().facts;
  std::cout << "warpline " << facts.version << ", model " << facts.model << " ("
            << facts.architecture << "), context " << facts.context_length << " tokens\n"
            << "machine: " << report.machine.cpu << ", " << report.machine.usable_cores
            << " cores, " << report.machine.kernel << "\n";
  for (size_t stage = 0; stage < facts.devices.size(); ++stage) {
    std::cout << "stage " << stage << ": " << facts.devices[stage] << "\n";
  }
  std::cout << "seed " << report.plan.seed
            << (ids.empty() ? ", prompts of any tokens (no vocabulary was read)" : "") << "\n\n";
}

int RunBench(const BenchOptions& options, const std::string& log_level) {
  Bench bench{
      .repeat = options.repeat, .timeout_seconds = options.timeout_seconds, .log_level = log_level};
  BenchReport& report = bench.report;
  report.command_line = CommandLine();
  report.machine = ReadMachineFacts();
  report.plan = options.plan;
  EraseZeros(report.plan.prompts);
  EraseZeros(report.plan.batches);
  if (options.seed_option->count() == 0) report.plan.seed = std::random_device()();
  if (const std::optional<int> code = Prepare(options, bench)) return *code;
  bench.target.api_key = options.service.api_key;
  // Files that cannot be written are better found before hours of measuring.
  for (const std::string& path : {options.json_file, options.plot_file}) {
    if (const absl::Status status = WriteFile(path, ""); !status.ok()) return ReportFailure(status);
  }
  int exit_code = kExitOk;
  const int run_count = bench.repeat * static_cast<int>(report.arms.size());
  for (int index = 0; index < run_count && exit_code == kExitOk; ++index) {
    exit_code = MakeRun(bench, index);
  }
  if (const absl::Status status = WriteFile(options.json_file, ReportJson(report)); !status.ok()) {
    return ReportFailure(status);
  }
  if (exit_code != kExitOk) return exit_code;
  if (const absl::Status status = WriteFile(options.plot_file, ReportSvg(report)); !status.ok()) {
    return ReportFailure(status);
  }
  PrintHead(report, bench.ids);
  std::cout << ReportTable(report) << std::flush;
  return kExitOk;
}

void AddPlanOptions(Flags& flags, CLI::App& command, BenchPlan& plan) {
  constexpr int kMaxTokens = 1 << 24;
  constexpr int kMaxStreams = 1024;
  flags
      .Add(command, "--prompts", plan.prompts,
           "Lengths of the prompts in tokens, such as 4096,26700 (0: measure none)")
      ->delimiter(',')
      ->check(IntegerRange(0, kMaxTokens));
  flags
      .Add(command, "--concurrent-prompts", plan.concurrent_prompts,
           "Prompts that are sent at one time, such as 1,4")
      ->delimiter(',')
      ->check(IntegerRange(1, kMaxStreams));
  flags
      .Add(command, "--batch", plan.batches,
           "Streams that generate at one time, such as 1,8,32 (0: measure none)")
      ->delimiter(',')
      ->check(IntegerRange(0, kMaxStreams));
  flags.Add(command, "--decode-tokens", plan.decode_tokens, "Tokens that each stream generates")
      ->check(IntegerRange(2, 1 << 20));
  flags
      .Add(command, "--decode-prompt", plan.decode_prompt,
           "Tokens of the prompt of each stream that generates")
      ->check(IntegerRange(1, kMaxTokens));
}

}  // namespace

Command MakeBenchCommand(CLI::App& app, Flags& flags) {
  CLI::App* const command = app.add_subcommand(
      "bench",
      "Measure prompt and decode speed at an HTTP client, with a fresh start for every run; -c and "
      "-np are what the measurements take unless given");
  auto options = std::make_shared<BenchOptions>();
  options->service.grpc_port = -1;
  options->service.drain_seconds = 0;
  AddEngineOptions(flags, *command, options->service);
  command->get_option("--model")->required(false);
  options->parallel_option = command->get_option("--parallel");
  AddPlanOptions(flags, *command, options->plan);
  options->seed_option =
      flags.Add(*command, "--seed", options->plan.seed, "Of all prompts (absent: a random one)")
          ->check(IntegerRange(0, kMaxSeed));
  // On the command line alone: a list of texts with blanks has no form that a config file's
  // `key = value` and the environment share.
  CLI::Option* const ab =
      command->add_option("--ab", options->ab,
                          "Options of serve for arm A and for arm B, which take turns, such as "
                          "\"--chunk 512\" \"--chunk 2048\"");
  ab->type_size(2)->expected(1)->configurable(false);
  flags.Add(*command, "--repeat", options->repeat, "Runs of each arm")
      ->check(IntegerRange(1, 1000));
  flags
      .Add(
          *command, "--url", options->url,
          "Measure the service at this address, such as http://127.0.0.1:8080, instead of starting "
          "one; with -m only its vocabulary is read from the file")
      ->excludes(ab);
  flags.Add(*command, "--api-key", options->service.api_key, "Key that the service wants");
  flags.MarkSecret("api-key");
  flags
      .Add(*command, "--timeout-s", options->timeout_seconds,
           "Longest silence of the service before it counts as failed, in seconds")
      ->check(IntegerRange(1, 86400));
  flags.Add(*command, "--json", options->json_file, "Write all figures there");
  flags.Add(*command, "--plot", options->plot_file, "Write a picture (SVG) there");
  return {.app = command, .run = [options, &app] {
            const CLI::Option* const level = app.get_option("--log-level");
            return RunBench(*options, level->count() > 0 ? level->as<std::string>() : "warning");
          }};
}

}  // namespace warpline
