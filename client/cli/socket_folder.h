// A folder that only this user can enter, for the sockets of one service; removed at the end.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace warpline {

class SocketFolder {
 public:
  // Makes `path` (mode 0700), or, when it is empty, a new folder under TMPDIR.
  static absl::StatusOr<SocketFolder> Create(const std::string& path);
  SocketFolder(SocketFolder&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  SocketFolder& operator=(SocketFolder&&) = delete;
  ~SocketFolder();

  const std::string& path() const { return path_; }

 private:
  explicit SocketFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace warpline
