// A folder that only this user can enter, for the sockets of one service; removed at the end when
// it was made for them.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace warpline {

class SocketFolder {
 public:
  // Makes `path` (mode 0700), or, when it is empty, a new folder under TMPDIR. A folder that is
  // there already is taken when nobody else may enter it, and left there; FailedPrecondition
  // otherwise.
  static absl::StatusOr<SocketFolder> Create(const std::string& path);
  SocketFolder(SocketFolder&& other) noexcept
      : path_(std::move(other.path_)), made_(std::exchange(other.made_, false)) {}
  SocketFolder& operator=(SocketFolder&&) = delete;
  ~SocketFolder();

  const std::string& path() const { return path_; }

 private:
  SocketFolder(std::string path, bool made) : path_(std::move(path)), made_(made) {}
  std::string path_;
  bool made_;
};

}  // namespace warpline
