#include "worker/ple/table_reader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"

namespace warpline {
namespace {

// Prefetched batches that wait for their Fetch: one computing, one arriving, and two whose
// sequences may have ended meanwhile.
constexpr size_t kMostEarlyBatches = 1 + 1 + 2;

std::vector<int64_t> SortedUnique(std::vector<int64_t> rows) {
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

const char* Name(PleIo mode) { return kPleIoNames[static_cast<int>(mode)]; }

}  // namespace

absl::Status TableReader::AddReaders(const NgramTable& table, PleIo mode,
                                     const RandomReaderOpener& open, Readers& readers) {
  WL_ASSIGN_OR_RETURN(std::unique_ptr<RandomReader> for_loader, open(table, mode));
  WL_ASSIGN_OR_RETURN(std::unique_ptr<RandomReader> for_chooser, open(table, mode));
  readers.modes.push_back(mode);
  readers.for_loader.push_back(std::move(for_loader));
  readers.for_chooser.push_back(std::move(for_chooser));
  return absl::OkStatus();
}

absl::StatusOr<TableReader::Readers> TableReader::OpenReaders(const NgramTable& table, PleIo io,
                                                              const RandomReaderOpener& open) {
  Readers readers;
  if (io != PleIo::kMmap) {
    const absl::Status status = AddReaders(table, PleIo::kDirect, open, readers);
    if (!status.ok() && !absl::IsFailedPrecondition(status)) return status;
    if (!status.ok()) {
      LogWarning("n-gram rows: mode direct cannot be used, mmap takes its place: ",
                 status.message());
    }
  }
  if (io != PleIo::kDirect || readers.modes.empty()) {
    const absl::Status status = AddReaders(table, PleIo::kMmap, open, readers);
    if (!status.ok() && (readers.modes.empty() || !absl::IsFailedPrecondition(status))) {
      return status;
    }
    if (!status.ok()) {
      LogWarning("n-gram rows: mode mmap cannot be used, direct takes its place: ",
                 status.message());
    }
  }
  return readers;
}

absl::StatusOr<std::unique_ptr<NgramReader>> TableReader::Open(const NgramTable& table,
                                                               const NgramReaderOptions& options,
                                                               const RandomReaderOpener& open) {
  WL_ASSIGN_OR_RETURN(const RowDecoder decoder, RowDecoder::Create(table));
  WL_ASSIGN_OR_RETURN(Readers readers, OpenReaders(table, options.io, open));
  // A disk that fails already is no basis to start on.
  std::vector<uint8_t> row(table.row_bytes());
  for (const std::unique_ptr<RandomReader>& reader : readers.for_loader) {
    WL_RETURN_IF_ERROR(reader->Read({{.offset = table.offset, .to = row.data()}}));
  }
  return std::unique_ptr<NgramReader>(new TableReader(table, options, decoder, std::move(readers)));
}

TableReader::TableReader(const NgramTable& table, const NgramReaderOptions& options,
                         const RowDecoder& decoder, Readers readers)
    : table_(table),
      options_(options),
      decoder_(decoder),
      cache_(table.row_bytes(), options.cache_bytes),
      watch_(options.slow_seconds),
      chooser_(table_, std::move(readers.for_chooser), readers.modes) {
  const auto expect = [this, modes = readers.modes](absl::Span<const double> rates) {
    for (size_t i = 0; i < modes.size(); ++i) watch_.Expect(modes[i], rates[i]);
  };
  expect(chooser_.rates());
  loader_ = std::make_unique<RowLoader>(table_, std::move(readers.for_loader), readers.modes,
                                        chooser_.current(), [this](const RowLoader::Slice& slice) {
                                          rows_read_ += slice.rows;
                                          watch_.SawRead(slice.mode, slice.rows, slice.seconds);
                                        });
  chooser_.Start(options.probe_pause_seconds,
                 [this, expect](absl::Span<const double> rates, size_t mode) {
                   expect(rates);
                   loader_->UseMode(mode);
                 });
}

absl::Status TableReader::Fetch(absl::Span<const int64_t> rows, absl::Span<float> out) {
  WL_RETURN_IF_ERROR(decoder_.Check(rows, out));
  std::vector<size_t> missing;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (const uint8_t* const bytes = cache_.Find(rows[i]); bytes != nullptr) {
      decoder_.Decode(bytes, out.data() + i * table_.row_width);
    } else {
      missing.push_back(i);
    }
  }
  rows_requested_ += rows.size();
  cache_hits_ += rows.size() - missing.size();
  if (missing.empty()) return absl::OkStatus();
  const SteadyTime begin = Now();
  const SteadyTime deadline = begin + std::chrono::duration_cast<SteadyTime::duration>(
                                          std::chrono::duration<double>(options_.max_wait_seconds));
  const absl::Status status = ReadMissing(rows, missing, deadline, out);
  DropSpentBatches();
  watch_.SawWait(loader_->mode(), missing.size(), SecondsSince(begin));
  if (status.ok()) {
    consecutive_errors_ = 0;
  } else {
    ++errors_;
    ++consecutive_errors_;
  }
  return status;
}

absl::Status TableReader::ReadMissing(absl::Span<const int64_t> rows,
                                      absl::Span<const size_t> missing, SteadyTime deadline,
                                      absl::Span<float> out) {
  std::vector<std::vector<size_t>> of_early(early_.size());
  std::vector<size_t> fresh;
  for (const size_t i : missing) {
    size_t source = 0;
    while (source < early_.size() && early_[source].batch->IndexOf(rows[i]) < 0) ++source;
    (source < early_.size() ? of_early[source] : fresh).push_back(i);
  }
  const std::shared_ptr<RowBatch> fresh_batch = StartUrgent(rows, fresh);
  std::vector<size_t> again;
  absl::Status status;
  for (size_t source = 0; source < early_.size() && status.ok(); ++source) {
    status = TakeEarly(early_[source], rows, of_early[source], deadline, out, again);
  }
  if (fresh_batch != nullptr && !status.ok()) RowLoader::GiveUp(*fresh_batch);
  WL_RETURN_IF_ERROR(status);
  WL_RETURN_IF_ERROR(WaitAndDeliver(fresh_batch.get(), rows, fresh, deadline, out));
  return WaitAndDeliver(StartUrgent(rows, again).get(), rows, again, deadline, out);
}

absl::Status TableReader::TakeEarly(EarlyBatch& early, absl::Span<const int64_t> rows,
                                    absl::Span<const size_t> missing, SteadyTime deadline,
                                    absl::Span<float> out, std::vector<size_t>& again) {
  if (missing.empty()) return absl::OkStatus();
  const absl::Status status = loader_->Wait(*early.batch, deadline);
  if (absl::IsDeadlineExceeded(status)) {
    early.left = 0;
    return TooSlow(*early.batch);
  }
  if (!status.ok()) {
    early.left = 0;
    again.insert(again.end(), missing.begin(), missing.end());
    return absl::OkStatus();
  }
  for (const size_t i : missing) {
    const int64_t index = early.batch->IndexOf(rows[i]);
    Deliver(*early.batch, index, i, out);
    if (!early.is_taken[index]) --early.left;
    early.is_taken[index] = true;
  }
  return absl::OkStatus();
}

std::shared_ptr<RowBatch> TableReader::StartUrgent(absl::Span<const int64_t> rows,
                                                   absl::Span<const size_t> indices) {
  if (indices.empty()) return nullptr;
  std::vector<int64_t> wanted;
  for (const size_t i : indices) wanted.push_back(rows[i]);
  return loader_->Start(SortedUnique(std::move(wanted)), /*is_urgent=*/true);
}

absl::Status TableReader::WaitAndDeliver(RowBatch* batch, absl::Span<const int64_t> rows,
                                         absl::Span<const size_t> indices, SteadyTime deadline,
                                         absl::Span<float> out) {
  if (batch == nullptr) return absl::OkStatus();
  const absl::Status status = loader_->Wait(*batch, deadline);
  if (absl::IsDeadlineExceeded(status)) return TooSlow(*batch);
  WL_RETURN_IF_ERROR(status);
  for (const size_t i : indices) Deliver(*batch, batch->IndexOf(rows[i]), i, out);
  return absl::OkStatus();
}

absl::Status TableReader::TooSlow(RowBatch& batch) const {
  RowLoader::GiveUp(batch);
  return absl::DeadlineExceededError(absl::StrCat(
      EscapeForLog(table_.path), ": ", batch.rows().size(), " n-gram rows have not been read in ",
      options_.max_wait_seconds, " s, mode ", Name(loader_->mode())));
}

void TableReader::Deliver(const RowBatch& batch, int64_t index, size_t to, absl::Span<float> out) {
  decoder_.Decode(batch.Data(index), out.data() + to * table_.row_width);
  cache_.Insert(batch.rows()[index], batch.Data(index));
}

void TableReader::DropSpentBatches() {
  early_.erase(std::remove_if(early_.begin(), early_.end(),
                              [](const EarlyBatch& early) { return early.left == 0; }),
               early_.end());
}

void TableReader::Prefetch(absl::Span<const int64_t> rows) {
  std::vector<int64_t> wanted;
  for (const int64_t row : rows) {
    // A row outside of the table is for Fetch to refuse.
    if (row >= 0 && row < table_.row_count && cache_.Find(row) == nullptr) wanted.push_back(row);
  }
  if (wanted.empty()) return;
  if (early_.size() == kMostEarlyBatches) {
    RowLoader::GiveUp(*early_.front().batch);
    early_.pop_front();
  }
  std::shared_ptr<RowBatch> batch =
      loader_->Start(SortedUnique(std::move(wanted)), /*is_urgent=*/false);
  const size_t count = batch->rows().size();
  early_.push_back({.batch = std::move(batch),
                    .is_taken = std::vector<bool>(count),
                    .left = static_cast<int64_t>(count)});
}

NgramCounters TableReader::counters() const {
  return {.rows_requested = rows_requested_,
          .cache_hits = cache_hits_,
          .rows_read = rows_read_,
          .mode_changes = chooser_.change_count(),
          .errors = errors_,
          .slow_batches = watch_.count(),
          .consecutive_errors = consecutive_errors_,
          .mode = loader_->mode()};
}

}  // namespace warpline
