// Rows through the page cache: a memory map read at random, with many pages on their way at once.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "worker/ple/random_reader.h"
#include "worker/ple/table_file.h"

namespace warpline {
namespace {

// So many rows are asked for before the first of them is copied: what keeps the disk busy.
constexpr size_t kWindow = 256;

class MappedReader final : public RandomReader {
 public:
  MappedReader(const NgramTable& table, UniqueFd fd, uint8_t* map)
      : table_(table), row_bytes_(table.row_bytes()), fd_(std::move(fd)), map_(map) {}
  ~MappedReader() override { munmap(map_, table_.file_bytes); }

  absl::Status Read(absl::Span<const ReadPiece> pieces) override {
    Announce(pieces.subspan(0, kWindow));
    for (size_t begin = 0; begin < pieces.size(); begin += kWindow) {
      if (begin + kWindow < pieces.size()) Announce(pieces.subspan(begin + kWindow, kWindow));
      WL_RETURN_IF_ERROR(Copy(pieces.subspan(begin, kWindow)));
    }
    return absl::OkStatus();
  }

 private:
  // Starts the reading of the pages that are not cached, and does not wait for it.
  void Announce(absl::Span<const ReadPiece> pieces) {
    uint64_t announced = 0;  // pages before this one
    for (const ReadPiece& piece : pieces) {
      const uint64_t begin = std::max(announced, piece.offset / page_);
      const uint64_t end = (piece.offset + row_bytes_ - 1) / page_ + 1;
      if (begin >= end) continue;
      // Advice only: the copy reads what is missing.
      madvise(map_ + begin * page_, (end - begin) * page_, MADV_WILLNEED);
      announced = end;
    }
  }

  // The kernel copies from our own map: a page that cannot be read is an error code then, where
  // reading the map ourselves would raise SIGBUS.
  absl::Status Copy(absl::Span<const ReadPiece> pieces) {
    std::array<iovec, kWindow> from;
    std::array<iovec, kWindow> to;
    const auto bytes = static_cast<size_t>(row_bytes_);
    for (size_t i = 0; i < pieces.size(); ++i) {
      from[i] = {.iov_base = map_ + pieces[i].offset, .iov_len = bytes};
      to[i] = {.iov_base = pieces[i].to, .iov_len = bytes};
    }
    size_t done = 0;
    while (done < pieces.size()) {
      const ssize_t copied = process_vm_readv(getpid(), &to[done], pieces.size() - done,
                                              &from[done], pieces.size() - done, 0);
      if (copied > 0) done += static_cast<size_t>(copied) / bytes;
      if (done == pieces.size()) break;
      // Not copied as a whole: a plain read of that row says why, or helps where the call is
      // forbidden.
      WL_RETURN_IF_ERROR(
          ReadFully(table_, fd_.get(), pieces[done].offset, pieces[done].to, row_bytes_));
      ++done;
    }
    return absl::OkStatus();
  }

  const NgramTable table_;
  const int64_t row_bytes_;
  const uint64_t page_ = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const UniqueFd fd_;
  uint8_t* const map_;  // the whole file
};

}  // namespace

absl::StatusOr<std::unique_ptr<RandomReader>> OpenMappedReader(const NgramTable& table) {
  WL_ASSIGN_OR_RETURN(UniqueFd fd, OpenTableFile(table, 0));
  void* const map = mmap(nullptr, table.file_bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) {
    return absl::FailedPreconditionError(absl::StrCat(EscapeForLog(table.path), ": cannot map ",
                                                      table.file_bytes,
                                                      " bytes: ", std::strerror(errno)));
  }
  // Without read-ahead: its pages would be read in vain and push others out.
  madvise(map, table.file_bytes, MADV_RANDOM);
  return std::unique_ptr<RandomReader>(
      new MappedReader(table, std::move(fd), static_cast<uint8_t*>(map)));
}

}  // namespace warpline
