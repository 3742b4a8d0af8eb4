// Rows past the page cache: io_uring with O_DIRECT into aligned buffers of our own.
#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "worker/ple/random_reader.h"
#include "worker/ple/table_file.h"

namespace warpline {
namespace {

// Most reads in flight at a time: entries of the ring, and places of memory that they read into.
// With more the disks that were measured gave no more rows per second.
constexpr unsigned kDepth = 128;
constexpr unsigned kWaitFor = 16;     // completions for each wake-up
constexpr int64_t kAlignment = 4096;  // of offset, length and memory; every block device takes it
constexpr int kMostRetries = 64;      // of interrupted reads, in one call

// One read of whole blocks, and the pieces that lie in it.
struct BlockRead {
  uint64_t offset = 0;
  int64_t bytes = 0;
  size_t first_piece = 0;
  size_t piece_count = 0;
};

// Memory that a read of the kernel may still write to, so it is never taken from the heap.
class BlockMemory {
 public:
  explicit BlockMemory(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~BlockMemory() {
    if (valid()) munmap(data_, bytes_);
  }
  BlockMemory(const BlockMemory&) = delete;
  BlockMemory& operator=(const BlockMemory&) = delete;

  bool valid() const { return data_ != MAP_FAILED; }
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  const size_t bytes_;
  void* const data_;
};

class DirectReader final : public RandomReader {
 public:
  DirectReader(const NgramTable& table, UniqueFd fd)
      : table_(table),
        row_bytes_(table.row_bytes()),
        slot_bytes_((row_bytes_ / kAlignment + 2) * kAlignment),
        fd_(std::move(fd)),
        memory_(kDepth * slot_bytes_) {}
  ~DirectReader() override {
    if (has_ring_) io_uring_queue_exit(&ring_);
  }

  // FailedPrecondition when the kernel or a filter of system calls has no io_uring for us.
  absl::Status Start() {
    if (!memory_.valid()) return absl::FailedPreconditionError("no memory for the read buffers");
    int result = io_uring_queue_init(kDepth, &ring_, IORING_SETUP_COOP_TASKRUN);
    if (result == -EINVAL) result = io_uring_queue_init(kDepth, &ring_, 0);  // before Linux 5.19
    if (result < 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("io_uring is not available: ", std::strerror(-result)));
    }
    has_ring_ = true;
    // Saves pinning the pages for each read. Where the limit of locked memory forbids it, reads
    // take a little more processor time.
    const iovec memory = {.iov_base = memory_.data(), .iov_len = memory_.bytes()};
    is_registered_ = io_uring_register_buffers(&ring_, &memory, 1) == 0;
    for (unsigned slot = 0; slot < kDepth; ++slot) free_slots_.push_back(slot);
    return absl::OkStatus();
  }

  absl::Status Read(absl::Span<const ReadPiece> pieces) override {
    WL_RETURN_IF_ERROR(broken_);
    PlanReads(pieces);
    todo_.resize(reads_.size());
    for (size_t i = 0; i < todo_.size(); ++i) todo_[i] = todo_.size() - 1 - i;
    retries_ = 0;
    absl::Status status;
    while (true) {
      if (!status.ok()) todo_.clear();  // What is in flight still has to come back.
      Submit();
      const unsigned in_flight = kDepth - static_cast<unsigned>(free_slots_.size());
      if (in_flight == 0) return status;
      const int result = io_uring_submit_and_wait(&ring_, std::min(in_flight, kWaitFor));
      if (result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY) {
        broken_ = ReadError(table_, reads_[0].offset, reads_[0].bytes, result);
        return broken_;
      }
      status.Update(Collect(pieces));
    }
  }

 private:
  // Rows in the same or the next block share a read.
  void PlanReads(absl::Span<const ReadPiece> pieces) {
    reads_.clear();
    for (size_t i = 0; i < pieces.size(); ++i) {
      const uint64_t begin = pieces[i].offset / kAlignment * kAlignment;
      const uint64_t end =
          (pieces[i].offset + row_bytes_ + kAlignment - 1) / kAlignment * kAlignment;
      if (!reads_.empty()) {
        BlockRead& last = reads_.back();
        if (begin <= last.offset + last.bytes &&
            end <= last.offset + static_cast<uint64_t>(slot_bytes_)) {
          last.bytes = std::max<int64_t>(last.bytes, end - last.offset);
          ++last.piece_count;
          continue;
        }
      }
      reads_.push_back({.offset = begin,
                        .bytes = static_cast<int64_t>(end - begin),
                        .first_piece = i,
                        .piece_count = 1});
    }
  }

  void Submit() {
    while (!todo_.empty() && !free_slots_.empty()) {
      io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
      if (entry == nullptr) return;
      const unsigned slot = free_slots_.back();
      free_slots_.pop_back();
      slot_reads_[slot] = todo_.back();
      todo_.pop_back();
      const BlockRead& read = reads_[slot_reads_[slot]];
      if (is_registered_) {
        io_uring_prep_read_fixed(entry, fd_.get(), SlotData(slot), read.bytes, read.offset, 0);
      } else {
        io_uring_prep_read(entry, fd_.get(), SlotData(slot), read.bytes, read.offset);
      }
      io_uring_sqe_set_data64(entry, slot);
    }
  }

  // Takes what has completed. The first error counts.
  absl::Status Collect(absl::Span<const ReadPiece> pieces) {
    absl::Status status;
    io_uring_cqe* entry = nullptr;
    while (io_uring_peek_cqe(&ring_, &entry) == 0) {
      const auto slot = static_cast<unsigned>(io_uring_cqe_get_data64(entry));
      const int result = entry->res;
      io_uring_cqe_seen(&ring_, entry);
      free_slots_.push_back(slot);
      if ((result == -EINTR || result == -EAGAIN) && ++retries_ <= kMostRetries) {
        todo_.push_back(slot_reads_[slot]);
        continue;
      }
      status.Update(CopyOut(pieces, reads_[slot_reads_[slot]], SlotData(slot), result));
    }
    return status;
  }

  absl::Status CopyOut(absl::Span<const ReadPiece> pieces, const BlockRead& read,
                       const uint8_t* data, int result) const {
    const auto own = pieces.subspan(read.first_piece, read.piece_count);
    // The file may end inside its last block, but not before the last row.
    const auto needed = static_cast<int64_t>(own.back().offset + row_bytes_ - read.offset);
    if (result < needed) return ReadError(table_, read.offset, needed, result);
    for (const ReadPiece& piece : own) {
      std::memcpy(piece.to, data + (piece.offset - read.offset), row_bytes_);
    }
    return absl::OkStatus();
  }

  uint8_t* SlotData(unsigned slot) const { return memory_.data() + slot * slot_bytes_; }

  const NgramTable table_;
  const int64_t row_bytes_;
  const int64_t slot_bytes_;  // holds the blocks of a row at any offset
  const UniqueFd fd_;
  const BlockMemory memory_;  // kDepth slots
  io_uring ring_ = {};
  bool has_ring_ = false;
  bool is_registered_ = false;
  absl::Status broken_;  // The ring failed; reads may be in flight for ever.
  int retries_ = 0;
  std::vector<BlockRead> reads_;  // of the call that runs
  std::vector<size_t> todo_;      // indices into reads_, the next one last
  std::vector<unsigned> free_slots_;
  size_t slot_reads_[kDepth] = {};  // what each slot in flight reads
};

}  // namespace

absl::StatusOr<std::unique_ptr<RandomReader>> OpenDirectReader(const NgramTable& table) {
  absl::StatusOr<UniqueFd> fd = OpenTableFile(table, O_DIRECT);
  if (absl::IsFailedPrecondition(fd.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the file system has no O_DIRECT: ", fd.status().message()));
  }
  if (!fd.ok()) return fd.status();
  auto reader = std::make_unique<DirectReader>(table, *std::move(fd));
  WL_RETURN_IF_ERROR(reader->Start());
  // Some file systems take the flag and refuse the reads.
  std::vector<uint8_t> row(table.row_bytes());
  if (const absl::Status status = reader->Read({{.offset = table.offset, .to = row.data()}});
      !status.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a trial read with O_DIRECT failed: ", status.message()));
  }
  return std::unique_ptr<RandomReader>(std::move(reader));
}

}  // namespace warpline
