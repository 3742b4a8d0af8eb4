#include "client/cli/device_memory.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/unique_fd.h"
#include "client/cli/program_path.h"

namespace warpline {
namespace {

// Standard output of a program that ends with exit code 0.
std::optional<std::string> OutputOf(std::vector<std::string> arguments) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  write_end = UniqueFd();  // Or the end of the output would never be seen.
  if (error != 0) return std::nullopt;
  std::string output;
  char bytes[256];
  ssize_t count = 0;
  while ((count = read(read_end.get(), bytes, sizeof(bytes))) != 0) {
    if (count > 0) output.append(bytes, static_cast<size_t>(count));
    if (count < 0 && errno != EINTR) break;
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::nullopt;
  return output;
}

}  // namespace

std::string DeviceMemoryList(const ServiceOptions& options) {
  if (options.backend != "cuda" || !options.device_memory.empty()) return options.device_memory;
  std::vector<int64_t> mib;
  for (const int device : ServiceDevices(options)) {
    const std::optional<std::string> output = OutputOf(
        {ProgramPath("warpline-worker"), "--show-device-memory", "--device", absl::StrCat(device)});
    int64_t free_bytes = 0;
    if (!output.has_value() ||
        !absl::SimpleAtoi(output->substr(0, output->find(' ')), &free_bytes)) {
      return "";  // The worker itself will say why.
    }
    mib.push_back(free_bytes >> 20);
  }
  return absl::StrJoin(mib, ",");
}

}  // namespace warpline
