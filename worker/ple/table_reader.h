// The n-gram reader over a disk: cache, prefetched batches, and the modes of reading.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "worker/ple/mode_chooser.h"
#include "worker/ple/ngram_reader.h"
#include "worker/ple/random_reader.h"
#include "worker/ple/row_cache.h"
#include "worker/ple/row_decoder.h"
#include "worker/ple/row_loader.h"
#include "worker/ple/slow_watch.h"

namespace warpline {

class TableReader final : public NgramReader {
 public:
  // `options.io` is auto, direct or mmap. `open` gives a new reader for each call; a mode for which
  // it says FailedPrecondition is not used, with one line in the log that names it and its
  // substitute.
  static absl::StatusOr<std::unique_ptr<NgramReader>> Open(const NgramTable& table,
                                                           const NgramReaderOptions& options,
                                                           const RandomReaderOpener& open);

  absl::Status Fetch(absl::Span<const int64_t> rows, absl::Span<float> out) override;
  void Prefetch(absl::Span<const int64_t> rows) override;
  NgramCounters counters() const override;

 private:
  // Rows that a Prefetch asked for and no Fetch has taken yet.
  struct EarlyBatch {
    std::shared_ptr<RowBatch> batch;
    std::vector<bool> is_taken;  // [batch->rows().size()]
    int64_t left = 0;            // rows not taken
  };
  struct Readers {
    std::vector<PleIo> modes;
    ReadersByMode for_loader;
    ReadersByMode for_chooser;
  };

  TableReader(const NgramTable& table, const NgramReaderOptions& options, const RowDecoder& decoder,
              Readers readers);

  static absl::StatusOr<Readers> OpenReaders(const NgramTable& table, PleIo io,
                                             const RandomReaderOpener& open);
  static absl::Status AddReaders(const NgramTable& table, PleIo mode,
                                 const RandomReaderOpener& open, Readers& readers);

  // Reads rows[i] for each i of `missing`.
  absl::Status ReadMissing(absl::Span<const int64_t> rows, absl::Span<const size_t> missing,
                           SteadyTime deadline, absl::Span<float> out);
  // Delivers what `early` has of `missing`, after waiting for it. When the batch has failed, those
  // go to `again`: the disk may have recovered, and if not, the error shows there.
  absl::Status TakeEarly(EarlyBatch& early, absl::Span<const int64_t> rows,
                         absl::Span<const size_t> missing, SteadyTime deadline,
                         absl::Span<float> out, std::vector<size_t>& again);
  // Null when there are no `indices`.
  std::shared_ptr<RowBatch> StartUrgent(absl::Span<const int64_t> rows,
                                        absl::Span<const size_t> indices);
  absl::Status WaitAndDeliver(RowBatch* batch, absl::Span<const int64_t> rows,
                              absl::Span<const size_t> indices, SteadyTime deadline,
                              absl::Span<float> out);
  absl::Status TooSlow(RowBatch& batch) const;
  void Deliver(const RowBatch& batch, int64_t index, size_t to, absl::Span<float> out);
  void DropSpentBatches();

  const NgramTable table_;
  const NgramReaderOptions options_;
  const RowDecoder decoder_;
  RowCache cache_;
  SlowWatch watch_;
  std::deque<EarlyBatch> early_;
  std::atomic<uint64_t> rows_requested_{0};
  std::atomic<uint64_t> cache_hits_{0};
  std::atomic<uint64_t> rows_read_{0};
  std::atomic<uint64_t> errors_{0};
  std::atomic<uint64_t> consecutive_errors_{0};
  // Have threads, which use what stands above. The chooser's uses the loader.
  std::unique_ptr<RowLoader> loader_;
  ModeChooser chooser_;
};

}  // namespace warpline
