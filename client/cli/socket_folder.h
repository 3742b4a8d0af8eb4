// A folder that only this user can enter, for the sockets of one service; removed at the end when
// it was made for them.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace warpline {

// InvalidArgument when the path of a service's socket in `folder` would be longer than the system
// allows; names that path.
absl::Status CheckSocketPaths(const std::string& folder);

class SocketFolder {
 public:
  // Makes `path` (mode 0700), or, when it is empty, a new folder under TMPDIR; then those that
  // killed processes left there are removed. A folder that is there already is taken when nobody
  // else may enter it, and left there; FailedPrecondition otherwise.
  static absl::StatusOr<SocketFolder> Create(const std::string& path);
  SocketFolder(SocketFolder&& other) noexcept
      : path_(std::move(other.path_)),
        made_(std::exchange(other.made_, false)),
        lock_(std::move(other.lock_)) {}
  SocketFolder& operator=(SocketFolder&&) = delete;
  ~SocketFolder();

  const std::string& path() const { return path_; }

 private:
  SocketFolder(std::string path, bool made, UniqueFd lock = UniqueFd())
      : path_(std::move(path)), made_(made), lock_(std::move(lock)) {}
  std::string path_;
  bool made_;
  UniqueFd lock_;  // On a folder under TMPDIR: it goes with this process, however that ends.
};

}  // namespace warpline
