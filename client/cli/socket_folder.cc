#include "client/cli/socket_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace warpline {
namespace {

absl::Status CannotUse(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("folder of the sockets ", EscapeForLog(path), ": ", why));
}

}  // namespace

absl::StatusOr<SocketFolder> SocketFolder::Create(const std::string& path) {
  if (!path.empty()) {
    if (mkdir(path.c_str(), 0700) == 0) {
      chmod(path.c_str(), 0700);  // Whatever the umask took away.
      return SocketFolder(path, /*made=*/true);
    }
    if (errno != EEXIST) return CannotUse(path, std::strerror(errno));
    struct stat info {};
    if (stat(path.c_str(), &info) != 0) return CannotUse(path, std::strerror(errno));
    if (!S_ISDIR(info.st_mode)) return CannotUse(path, "is no folder");
    if (info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
      return CannotUse(path, "others may enter it; it has to be this user's, mode 0700");
    }
    return SocketFolder(path, /*made=*/false);
  }
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  std::string made = absl::StrCat(error ? "/tmp" : parent.string(), "/warpline-XXXXXX");
  if (mkdtemp(made.data()) == nullptr) {
    return CannotUse(made, std::strerror(errno));
  }
  chmod(made.c_str(), 0700);  // Whatever the umask took away.
  return SocketFolder(made, /*made=*/true);
}

SocketFolder::~SocketFolder() {
  std::error_code error;
  if (made_) std::filesystem::remove_all(path_, error);
}

}  // namespace warpline
