#include "client/cli/socket_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace warpline {

absl::StatusOr<SocketFolder> SocketFolder::Create(const std::string& path) {
  if (!path.empty()) {
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
      return absl::InternalError(
          absl::StrCat("folder ", EscapeForLog(path), ": ", std::strerror(errno)));
    }
    chmod(path.c_str(), 0700);
    return SocketFolder(path);
  }
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  std::string made = absl::StrCat(error ? "/tmp" : parent.string(), "/warpline-XXXXXX");
  if (mkdtemp(made.data()) == nullptr) {
    return absl::InternalError(
        absl::StrCat("folder ", EscapeForLog(made), ": ", std::strerror(errno)));
  }
  chmod(made.c_str(), 0700);  // Whatever the umask took away.
  return SocketFolder(made);
}

SocketFolder::~SocketFolder() {
  std::error_code error;
  if (!path_.empty()) std::filesystem::remove_all(path_, error);
}

}  // namespace warpline
