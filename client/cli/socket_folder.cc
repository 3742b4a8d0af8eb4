#include "client/cli/socket_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace warpline {
namespace {

constexpr char kLongestName[] = "coordinator.sock";
constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;
constexpr char kPrefix[] = "warpline-serve-";
constexpr int kAttempts = 5;  // Another process may take a new folder for one that was left.

absl::Status CannotUse(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("folder of the sockets ", EscapeForLog(path), ": ", why));
}

// The lock on a folder of this user, or none when it is another's, is gone, or is held elsewhere.
UniqueFd LockFolder(const std::string& path) {
  UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!folder.valid() || fstat(folder.get(), &info) != 0 || info.st_uid != geteuid() ||
      flock(folder.get(), LOCK_EX | LOCK_NB) != 0 || stat(path.c_str(), &info) != 0) {
    return UniqueFd();
  }
  return folder;
}

// Removes the folders under `parent` that no living process holds locked.
void RemoveLeftFolders(const std::filesystem::path& parent, const std::string& own) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(parent, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().string();
    if (path == own || !absl::StartsWith(entry->path().filename().string(), kPrefix)) continue;
    const UniqueFd lock = LockFolder(path);
    if (!lock.valid()) continue;
    LogInfo("removing ", EscapeForLog(path), ": its process was killed");
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
}

}  // namespace

absl::Status CheckSocketPaths(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kLongestName);
  if (path.size() <= kMaxPathBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("socket path ", EscapeForLog(path),
                                                 " is longer than ", kMaxPathBytes, " bytes"));
}

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
  std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) parent = "/tmp";
  std::string made;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    made = absl::StrCat(parent.string(), "/", kPrefix, "XXXXXX");
    if (mkdtemp(made.data()) == nullptr) return CannotUse(made, std::strerror(errno));
    chmod(made.c_str(), 0700);  // Whatever the umask took away.
    UniqueFd lock = LockFolder(made);
    if (!lock.valid()) continue;
    RemoveLeftFolders(parent, made);
    return SocketFolder(made, /*made=*/true, std::move(lock));
  }
  return CannotUse(made, "cannot be locked");
}

SocketFolder::~SocketFolder() {
  std::error_code error;
  if (made_) std::filesystem::remove_all(path_, error);
}

}  // namespace warpline
