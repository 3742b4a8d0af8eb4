#include "worker/ple/row_loader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace warpline {
namespace {

// Rows of one read. Between two of them urgent batches get ahead and a new mode is taken up; a
// smaller number would leave the disk idle too often.
constexpr size_t kSliceRows = 4096;

}  // namespace

int64_t RowBatch::IndexOf(int64_t row) const {
  const auto found = std::lower_bound(rows_.begin(), rows_.end(), row);
  return found != rows_.end() && *found == row ? found - rows_.begin() : -1;
}

RowLoader::RowLoader(const NgramTable& table, ReadersByMode readers, std::vector<PleIo> modes,
                     size_t mode, std::function<void(const Slice&)> on_slice)
    : table_(table),
      readers_(std::move(readers)),
      modes_(std::move(modes)),
      on_slice_(std::move(on_slice)),
      mode_(mode),
      thread_([this] { Loop(); }) {}

RowLoader::~RowLoader() {
  {
    MutexLock lock(mutex_);
    is_closing_ = true;
    has_work_.NotifyAll();
  }
  thread_.join();
}

std::shared_ptr<RowBatch> RowLoader::Start(std::vector<int64_t> rows, bool is_urgent) {
  auto batch = std::make_shared<RowBatch>(std::move(rows), table_.row_bytes());
  MutexLock lock(mutex_);
  (is_urgent ? urgent_ : early_).push_back(batch);
  has_work_.NotifyOne();
  return batch;
}

absl::Status RowLoader::Wait(RowBatch& batch, SteadyTime deadline) {
  MutexLock lock(mutex_);
  while (!batch.is_finished_) {
    if (!has_finished_.WaitUntil(mutex_, deadline) && !batch.is_finished_) {
      return absl::DeadlineExceededError("the rows have not arrived in time");
    }
  }
  return absl::Status(batch.code_, batch.message_);
}

std::shared_ptr<RowBatch> RowLoader::Next() {
  MutexLock lock(mutex_);
  while (!is_closing_ && urgent_.empty() && early_.empty()) has_work_.Wait(mutex_);
  if (is_closing_) return nullptr;
  return urgent_.empty() ? early_.front() : urgent_.front();
}

void RowLoader::Loop() {
  while (const std::shared_ptr<RowBatch> batch = Next()) {
    absl::Status status;
    if (!ReadSlice(*batch, status)) continue;
    MutexLock lock(mutex_);
    batch->is_finished_ = true;
    batch->code_ = status.code();
    batch->message_ = std::string(status.message());
    // Only this thread takes out, so the batch is still in front of its queue.
    std::deque<std::shared_ptr<RowBatch>>& queue =
        !urgent_.empty() && urgent_.front() == batch ? urgent_ : early_;
    queue.pop_front();
    has_finished_.NotifyAll();
  }
}

bool RowLoader::ReadSlice(RowBatch& batch, absl::Status& status) {
  if (batch.is_given_up_) {
    status = absl::CancelledError("nobody waits for these rows any more");
    return true;
  }
  const absl::Span<const int64_t> rows = batch.rows().subspan(batch.done_, kSliceRows);
  pieces_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    pieces_.push_back({.offset = table_.offset + rows[i] * batch.row_bytes_,
                       .to = batch.bytes_.data() + (batch.done_ + i) * batch.row_bytes_});
  }
  const size_t mode = mode_;
  const SteadyTime begin = Now();
  status = readers_[mode]->Read(pieces_);
  if (!status.ok()) return true;
  on_slice_({.mode = modes_[mode],
             .rows = static_cast<int64_t>(rows.size()),
             .seconds = SecondsSince(begin)});
  batch.done_ += rows.size();
  return batch.done_ == batch.rows().size();
}

}  // namespace warpline
