// warpline-parity: compares every expert kernel with double-precision products, on each device in
// turn in one process, then in one process for each device; measures them with --bench.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/flags.h"
#include "base/process.h"
#include "kernels/cuda/cuda_library.h"

namespace warpline {
namespace {

constexpr char kDigestPrefix[] = "digest ";

struct Config {
  ParityOptions parity;
  std::string types;
  std::string policies;
  bool one_process = false;
};

void AddOptions(CLI::App& app, Flags& flags, Config& config) {
  flags.Add(app, "--types", config.types, "Tensor types, such as IQ3_XXS,Q4_K; empty: all");
  flags.Add(app, "--policies", config.policies,
            "Of wgmma,mma_sync,wmma,off; empty: all that the card has");
  flags.Add(app, "--device", config.parity.device, "One device only; -1: all")
      ->check(IntegerRange(-1, 1023));
  flags.AddFlag(app, "--quick", config.parity.quick, "One shape and few row counts");
  flags.AddFlag(app, "--full", config.parity.full,
                "All row counts with every type and policy; takes minutes");
  flags.AddFlag(app, "--bench", config.parity.bench,
                "Measure TFLOP/s and GB/s beside cuBLAS instead of comparing");
  flags.AddFlag(app, "--skip-opt-in", config.parity.skip_opt_in,
                "Launch a kernel whose shared-memory limit was not raised, and show the error");
  flags.Add(app, "--json", config.parity.json, "Write the results to this file");
  flags.AddFlag(app, "--one-process", config.one_process,
                "Do not start a process for each device afterwards");
}

std::vector<std::string> Names(const std::string& list) {
  return absl::StrSplit(list, ',', absl::SkipWhitespace());
}

// Runs this program again for one device; its exit code, and the digest it printed.
struct ChildResult {
  int exit_code = kExitFailure;
  std::string digest;
};

ChildResult RunChild(const Config& config, int device) {
  std::vector<std::string> arguments = {"/proc/self/exe", "--one-process", "--device",
                                        absl::StrCat(device)};
  if (!config.types.empty()) arguments.insert(arguments.end(), {"--types", config.types});
  if (!config.policies.empty()) arguments.insert(arguments.end(), {"--policies", config.policies});
  if (config.parity.quick) arguments.push_back("--quick");
  if (config.parity.full) arguments.push_back("--full");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);

  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  close(ends[1]);
  std::string output;
  char chunk[4096];
  for (;;) {
    const ssize_t count = read(ends[0], chunk, sizeof(chunk));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    output.append(chunk, static_cast<size_t>(count));
  }
  close(ends[0]);
  int state = 0;
  if (child < 0 || waitpid(child, &state, 0) != child) return {};
  ChildResult result{.exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : kExitFailure};
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    if (absl::ConsumePrefix(&line, kDigestPrefix)) result.digest = std::string(line);
    if (absl::StrContains(line, "FAIL")) std::printf("%s\n", std::string(line).c_str());
  }
  return result;
}

// The same cases in one process for each device; gives how many of these failed.
int RunProcesses(const Config& config, const ParityResult& first) {
  int failures = 0;
  for (int device = 0; device < first.devices; ++device) {
    const int ordinal = config.parity.device >= 0 ? config.parity.device : device;
    const ChildResult child = RunChild(config, ordinal);
    const bool is_equal = child.digest == first.digests[static_cast<size_t>(device)];
    const bool is_good = child.exit_code == kExitOk && is_equal;
    std::printf("device %d in a process of its own: exit code %d, %s%s\n", ordinal, child.exit_code,
                is_equal ? "the same bits" : "other bits", is_good ? "" : "  FAIL");
    failures += is_good ? 0 : 1;
  }
  return failures;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "warpline-parity: %s\n", std::string(status.message()).c_str());
  if (absl::IsInvalidArgument(status)) return kExitUsage;
  const bool has_no_device = absl::IsNotFound(status) || absl::IsFailedPrecondition(status);
  return has_no_device ? kExitNoDevice : kExitFailure;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Compares the expert kernels of every CUDA device with double-precision products, or "
      "measures "
      "them. Exit codes: 0 all equal, 1 failures, 77 no device");
  Flags flags(app, "warpline-parity");
  Config config;
  AddOptions(app, flags, config);
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
  config.parity.types = Names(config.types);
  config.parity.policies = Names(config.policies);

  const absl::StatusOr<std::unique_ptr<CudaApi>> api = OpenCudaLibrary();
  if (!api.ok()) return Fail(api.status());
  const absl::StatusOr<ParityResult> result = (*api)->Parity(config.parity);
  if (!result.ok()) return Fail(result.status());
  int failures = result->failures;
  const bool is_comparison = !config.parity.bench && !config.parity.skip_opt_in;
  if (is_comparison && !config.one_process) failures += RunProcesses(config, *result);
  if (is_comparison && config.one_process && result->devices == 1) {
    std::printf("%s%s\n", kDigestPrefix, result->digests[0].c_str());
  }
  std::printf("%d failures on %d devices\n", failures, result->devices);
  return failures == 0 ? kExitOk : kExitFailure;
}

}  // namespace
}  // namespace warpline

int main(int argc, char** argv) { return warpline::Main(argc, argv); }
