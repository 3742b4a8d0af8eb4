// A generated n-gram table, and readers that stand for a disk in trouble.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "base/status.h"
#include "kernels/quant_decode.h"
#include "worker/ple/ngram_reader.h"
#include "worker/ple/random_reader.h"

namespace warpline {

// A file with a table at an offset that is aligned to nothing; removed at the end.
class TableFile {
 public:
  struct Args {
    QuantType type = QuantType::kQ8_0;
    int row_width = 160;
    int64_t row_count = 3000;
    int64_t bytes_before = 5003;
    int64_t bytes_behind = 0;
  };
  explicit TableFile(const Args& args) {
    std::string path = absl::StrCat(::testing::TempDir(), "/ngram-table-XXXXXX");
    close(mkstemp(path.data()));
    table_ = {.path = path,
              .offset = static_cast<uint64_t>(args.bytes_before),
              .type = args.type,
              .row_width = args.row_width,
              .row_count = args.row_count};
    bytes_.resize(args.bytes_before + args.row_count * table_.row_bytes() + args.bytes_behind);
    std::mt19937 random(7);
    // Small bytes only: no block's scale is then an infinity or a NaN, which would equal nothing.
    for (uint8_t& byte : bytes_) byte = random() % 120;
    table_.file_bytes = bytes_.size();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
  }
  TableFile() : TableFile(Args{}) {}
  ~TableFile() { unlink(table_.path.c_str()); }
  TableFile(const TableFile&) = delete;
  TableFile& operator=(const TableFile&) = delete;

  const NgramTable& table() const { return table_; }
  const uint8_t* RowData(int64_t row) const {
    return bytes_.data() + table_.offset + row * table_.row_bytes();
  }
  // What Fetch must give.
  std::vector<float> Values(absl::Span<const int64_t> rows) const {
    std::vector<float> values(rows.size() * table_.row_width);
    for (size_t i = 0; i < rows.size(); ++i) {
      DequantizeRow(table_.type, RowData(rows[i]), table_.row_width,
                    values.data() + i * table_.row_width);
    }
    return values;
  }

 private:
  NgramTable table_;
  std::vector<uint8_t> bytes_;
};

// What a disk does to those who read from it, for each mode. All readers of a test share one.
class DiskTrouble {
 public:
  void SetDelay(PleIo mode, std::chrono::microseconds delay) {
    delay_us_[Index(mode)] = delay.count();
  }
  void FailReads(int count) { failures_ = count; }
  void SetUnusable(PleIo mode) { is_unusable_[Index(mode)] = true; }
  void Block() {
    MutexLock lock(mutex_);
    is_blocked_ = true;
  }
  void Unblock() {
    MutexLock lock(mutex_);
    is_blocked_ = false;
    changed_.NotifyAll();
  }

  // Called by a reader before each read.
  absl::Status Meet(const NgramTable& table, PleIo mode, uint64_t offset) {
    if (const int64_t delay = delay_us_[Index(mode)]; delay > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
    }
    {
      MutexLock lock(mutex_);
      while (is_blocked_) changed_.Wait(mutex_);
    }
    if (failures_ > 0) {
      --failures_;
      return ReadError(table, offset, table.row_bytes(), -EIO);
    }
    return absl::OkStatus();
  }
  // Opens real readers, with the trouble before them.
  RandomReaderOpener Opener();

  bool is_unusable(PleIo mode) const { return is_unusable_[Index(mode)]; }

 private:
  static int Index(PleIo mode) { return static_cast<int>(mode); }

  std::atomic<int64_t> delay_us_[4] = {};
  std::atomic<bool> is_unusable_[4] = {};
  std::atomic<int> failures_{0};
  Mutex mutex_;
  CondVar changed_;
  bool is_blocked_ ABSL_GUARDED_BY(mutex_) = false;
};

class TroubledReader final : public RandomReader {
 public:
  TroubledReader(DiskTrouble& trouble, const NgramTable& table, PleIo mode,
                 std::unique_ptr<RandomReader> reader)
      : trouble_(trouble), table_(table), mode_(mode), reader_(std::move(reader)) {}

  absl::Status Read(absl::Span<const ReadPiece> pieces) override {
    WL_RETURN_IF_ERROR(trouble_.Meet(table_, mode_, pieces.front().offset));
    return reader_->Read(pieces);
  }

 private:
  DiskTrouble& trouble_;
  const NgramTable table_;
  const PleIo mode_;
  const std::unique_ptr<RandomReader> reader_;
};

inline RandomReaderOpener DiskTrouble::Opener() {
  return
      [this](const NgramTable& table, PleIo mode) -> absl::StatusOr<std::unique_ptr<RandomReader>> {
        if (is_unusable(mode)) return absl::FailedPreconditionError("not on this machine");
        // The page cache stands for both: the file system of a test's folder may lack the other.
        WL_ASSIGN_OR_RETURN(std::unique_ptr<RandomReader> reader, OpenMappedReader(table));
        return std::make_unique<TroubledReader>(*this, table, mode, std::move(reader));
      };
}

}  // namespace warpline
