// The thread that reads rows of the n-gram table while the executor computes.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "worker/ple/ngram_reader.h"
#include "worker/ple/random_reader.h"

namespace warpline {

// Rows on their way from the table to memory. Shared by who asked and the loader's thread: whoever
// gives up waiting leaves behind a batch that is still being written to.
class RowBatch {
 public:
  // `rows` ascend and do not repeat.
  RowBatch(std::vector<int64_t> rows, int64_t row_bytes)
      : rows_(std::move(rows)), row_bytes_(row_bytes), bytes_(rows_.size() * row_bytes) {}

  absl::Span<const int64_t> rows() const { return rows_; }
  // Place of `row` in `rows`, or -1.
  int64_t IndexOf(int64_t row) const;
  // Valid when the batch was waited for and is OK.
  const uint8_t* Data(int64_t index) const { return bytes_.data() + index * row_bytes_; }

 private:
  friend class RowLoader;

  const std::vector<int64_t> rows_;
  const int64_t row_bytes_;
  std::vector<uint8_t> bytes_;  // [rows_.size(), row_bytes_]
  size_t done_ = 0;             // The loader's thread only.
  std::atomic<bool> is_given_up_{false};
  // Guarded by the loader's mutex.
  bool is_finished_ = false;
  // A status by its parts: the two threads share no object that is counted inside abseil.
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::string message_;
};

// Readers by mode; null for those that are not usable.
using ReadersByMode = std::vector<std::unique_ptr<RandomReader>>;

class RowLoader {
 public:
  struct Slice {
    PleIo mode;
    int64_t rows;
    double seconds;
  };
  // `readers` holds one for each of `modes`. `on_slice` hears of every read that succeeded, on the
  // loader's thread.
  RowLoader(const NgramTable& table, ReadersByMode readers, std::vector<PleIo> modes, size_t mode,
            std::function<void(const Slice&)> on_slice);
  // Waits for the read that runs, if any.
  ~RowLoader();

  // `is_urgent`: before those that are not. Returns at once.
  std::shared_ptr<RowBatch> Start(std::vector<int64_t> rows, bool is_urgent);
  // The batch's status when it is finished; DeadlineExceeded when it is not until `deadline`.
  absl::Status Wait(RowBatch& batch, SteadyTime deadline);
  // What is left of the batch is not read any more.
  static void GiveUp(RowBatch& batch) { batch.is_given_up_ = true; }

  // From the next read on. `mode` is an index into `modes`.
  void UseMode(size_t mode) { mode_ = mode; }
  PleIo mode() const { return modes_[mode_]; }

 private:
  void Loop();
  // The next batch to work at; null when closing.
  std::shared_ptr<RowBatch> Next();
  // Reads some of the batch's rows. True when nothing is left to do for it.
  bool ReadSlice(RowBatch& batch, absl::Status& status);

  const NgramTable table_;
  const ReadersByMode readers_;
  const std::vector<PleIo> modes_;
  const std::function<void(const Slice&)> on_slice_;
  std::atomic<size_t> mode_;
  std::vector<ReadPiece> pieces_;  // The loader's thread only.
  Mutex mutex_;
  CondVar has_work_;
  CondVar has_finished_;
  std::deque<std::shared_ptr<RowBatch>> urgent_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<RowBatch>> early_ ABSL_GUARDED_BY(mutex_);
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace warpline
