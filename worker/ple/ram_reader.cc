#include "worker/ple/ram_reader.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "worker/ple/row_decoder.h"
#include "worker/ple/table_file.h"

namespace warpline {
namespace {

constexpr int64_t kCopyBytes = int64_t{16} << 20;

// No limit when the system does not say.
int64_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  for (std::string unit; file >> key >> kib; std::getline(file, unit)) {
    if (key == "MemAvailable:") return kib << 10;
  }
  return std::numeric_limits<int64_t>::max();
}

class RamReader final : public NgramReader {
 public:
  RamReader(const NgramTable& table, const RowDecoder& decoder)
      : row_bytes_(table.row_bytes()),
        row_width_(table.row_width),
        bytes_(table.row_count * row_bytes_),
        decoder_(decoder) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  ~RamReader() override {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }

  absl::Status Load(const NgramTable& table) {
    if (data_ == MAP_FAILED || bytes_ > AvailableBytes()) {
      return absl::FailedPreconditionError(absl::StrCat("a copy of the n-gram table takes ",
                                                        bytes_ >> 20, " MiB, available are ",
                                                        AvailableBytes() >> 20));
    }
    // Rows are read at random: small pages would miss the address cache with nearly each of them.
    madvise(data_, bytes_, MADV_HUGEPAGE);
    WL_ASSIGN_OR_RETURN(const UniqueFd fd, OpenTableFile(table, 0));
    for (int64_t done = 0; done < bytes_; done += kCopyBytes) {
      const int64_t count = std::min(kCopyBytes, bytes_ - done);
      const uint64_t offset = table.offset + done;
      WL_RETURN_IF_ERROR(ReadFully(table, fd.get(), offset, data() + done, count));
      // One copy is enough; advice only.
      posix_fadvise(fd.get(), static_cast<off_t>(offset), count, POSIX_FADV_DONTNEED);
    }
    return absl::OkStatus();
  }

  absl::Status Fetch(absl::Span<const int64_t> rows, absl::Span<float> out) override {
    WL_RETURN_IF_ERROR(decoder_.Check(rows, out));
    for (size_t i = 0; i < rows.size(); ++i) {
      decoder_.Decode(data() + rows[i] * row_bytes_, out.data() + i * row_width_);
    }
    rows_requested_ += rows.size();
    return absl::OkStatus();
  }
  void Prefetch(absl::Span<const int64_t>) override {}
  // Every row is a hit.
  NgramCounters counters() const override {
    return {.rows_requested = rows_requested_, .cache_hits = rows_requested_, .mode = PleIo::kRam};
  }

 private:
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }

  const int64_t row_bytes_;
  const int64_t row_width_;
  const int64_t bytes_;
  const RowDecoder decoder_;
  void* data_;
  std::atomic<uint64_t> rows_requested_{0};
};

}  // namespace

absl::StatusOr<std::unique_ptr<NgramReader>> OpenRamReader(const NgramTable& table) {
  WL_ASSIGN_OR_RETURN(const RowDecoder decoder, RowDecoder::Create(table));
  auto reader = std::make_unique<RamReader>(table, decoder);
  WL_RETURN_IF_ERROR(reader->Load(table));
  LogInfo("n-gram rows: mode=ram bytes=", table.row_count * table.row_bytes());
  return std::unique_ptr<NgramReader>(std::move(reader));
}

}  // namespace warpline
