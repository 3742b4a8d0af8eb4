#include "worker/ple/table_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "worker/ple/random_reader.h"

namespace warpline {

absl::StatusOr<UniqueFd> OpenTableFile(const NgramTable& table, int extra_flags) {
  const std::string name = EscapeForLog(table.path);
  UniqueFd fd(open(table.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | extra_flags));
  if (!fd.valid()) {
    const std::string message = absl::StrCat(name, ": ", std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(message) : absl::FailedPreconditionError(message);
  }
  struct stat info;
  if (fstat(fd.get(), &info) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(name, ": ", std::strerror(errno)));
  }
  const uint64_t file_bytes = S_ISREG(info.st_mode) ? info.st_size : 0;
  if (file_bytes != table.file_bytes) {
    return absl::DataLossError(
        absl::StrCat(name, " has ", file_bytes, " bytes, but had ", table.file_bytes));
  }
  const auto table_bytes = static_cast<uint64_t>(table.row_count * table.row_bytes());
  if (table.offset > file_bytes || table_bytes > file_bytes - table.offset) {
    return absl::DataLossError(absl::StrCat(name, " has ", file_bytes, " bytes, but a table of ",
                                            table_bytes, " at offset ", table.offset));
  }
  return fd;
}

absl::Status ReadError(const NgramTable& table, uint64_t offset, int64_t wanted, int64_t result) {
  if (result < 0) {
    return absl::DataLossError(absl::StrCat(EscapeForLog(table.path), ": reading ", wanted,
                                            " bytes at offset ", offset, ": ",
                                            std::strerror(static_cast<int>(-result))));
  }
  return absl::DataLossError(absl::StrCat(EscapeForLog(table.path), ": short read at offset ",
                                          offset, ": ", result, " bytes of ", wanted));
}

absl::Status ReadFully(const NgramTable& table, int fd, uint64_t offset, uint8_t* to,
                       int64_t bytes) {
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t count = pread(fd, to + done, bytes - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ReadError(table, offset + done, bytes - done, -errno);
    if (count == 0) return ReadError(table, offset, bytes, done);
    done += count;
  }
  return absl::OkStatus();
}

}  // namespace warpline
