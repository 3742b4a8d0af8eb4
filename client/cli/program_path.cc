#include "client/cli/program_path.h"

#include <filesystem>
#include <system_error>

namespace warpline {

std::string ProgramPath(const std::string& name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (error ? std::filesystem::path("/usr/bin") : self.parent_path()) / name;
}

}  // namespace warpline
