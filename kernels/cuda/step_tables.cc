#include "kernels/cuda/step_tables.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/packed_layout.h"

namespace warpline::cuda {
namespace {

constexpr int64_t kAlignment = 64;

// Appends arrays to the staging buffer, each aligned; remembers where.
class Writer {
 public:
  Writer(uint8_t* host, const uint8_t* device) : host_(host), device_(device) {}
  template <typename T>
  const T* Append(absl::Span<const T> values) {
    const int64_t at = used_;
    if (!values.empty()) std::memcpy(host_ + at, values.data(), values.size() * sizeof(T));
    used_ = RoundUp(used_ + static_cast<int64_t>(values.size() * sizeof(T)), kAlignment);
    return reinterpret_cast<const T*>(device_ + at);
  }
  int64_t used() const { return used_; }

 private:
  uint8_t* host_;
  const uint8_t* device_;
  int64_t used_ = 0;
};

int64_t BytesFor(int64_t rows, int64_t sequence_count, int64_t page_count) {
  return 3 * (rows * static_cast<int64_t>(sizeof(int32_t)) + kAlignment) +
         sequence_count * static_cast<int64_t>(sizeof(StepSequenceView)) +
         page_count * static_cast<int64_t>(sizeof(int32_t)) + 2 * kAlignment;
}

}  // namespace

absl::StatusOr<StepTables> StepTables::Create() {
  StepTables tables;
  WL_ASSIGN_OR_RETURN(tables.copied_, Event::Create(Event::Use::kOrder));
  return tables;
}

absl::Status StepTables::Reserve(int64_t max_rows, int64_t page_count) {
  return Grow(BytesFor(max_rows, max_rows, page_count));
}

absl::Status StepTables::Grow(int64_t bytes) {
  if (bytes <= tables_.bytes()) return absl::OkStatus();
  const int64_t wanted = 2 * bytes;
  tables_ = DeviceBuffer();
  staging_ = PinnedBuffer();
  WL_ASSIGN_OR_RETURN(staging_, PinnedBuffer::Create(wanted));
  WL_ASSIGN_OR_RETURN(tables_, DeviceBuffer::Create(wanted));
  return absl::OkStatus();
}

absl::Status StepTables::Begin(const StepState& step, bool is_decode, cudaStream_t stream) {
  constexpr int64_t kMaxPosition = (int64_t{1} << 31) - 1;
  sequences_.clear();
  positions_.clear();
  view_ = {};
  const int64_t sequence_count = static_cast<int64_t>(step.sequences().size());
  for (int64_t i = 0; i < sequence_count; ++i) {
    const StepState::Sequence& sequence = step.sequences()[i];
    const int64_t end = sequence.first_position + sequence.row_count;
    if (end > kMaxPosition) {
      return absl::InvalidArgumentError(absl::StrCat("a sequence of ", end, " positions"));
    }
    const int64_t page_end = i + 1 < sequence_count ? step.sequences()[i + 1].first_page
                                                    : static_cast<int64_t>(step.pages().size());
    sequences_.push_back({.first_row = static_cast<int32_t>(sequence.first_row),
                          .row_count = static_cast<int32_t>(sequence.row_count),
                          .first_position = static_cast<int32_t>(sequence.first_position),
                          .first_page = static_cast<int32_t>(sequence.first_page),
                          .page_count = static_cast<int32_t>(page_end - sequence.first_page),
                          .kv_slot = sequence.kv_slot});
    if (sequence.row_count > 0) {
      view_.max_context = std::max(view_.max_context, static_cast<int32_t>(end));
    }
  }
  for (const int64_t position : step.positions()) {
    positions_.push_back(static_cast<int32_t>(position));
  }
  const int64_t rows = step.row_count();
  WL_RETURN_IF_ERROR(
      CudaStatus(cudaEventSynchronize(copied_.get()), "waiting for a step's tables"));
  WL_RETURN_IF_ERROR(
      Grow(BytesFor(rows, sequence_count, static_cast<int64_t>(step.pages().size()))));
  Writer writer(staging_.as(), tables_.as());
  view_.token_ids = writer.Append(step.token_ids());
  view_.positions = writer.Append(absl::Span<const int32_t>(positions_));
  view_.sequence_of_row = writer.Append(step.sequence_of_row());
  view_.sequences = writer.Append(absl::Span<const StepSequenceView>(sequences_));
  view_.pages = writer.Append(step.pages());
  view_.is_decode = is_decode;
  view_.row_count = static_cast<int32_t>(rows);
  view_.sequence_count = static_cast<int32_t>(sequence_count);
  view_.largest_page = step.largest_page();
  view_.on_host = sequences_;
  view_.positions_on_host = positions_;
  WL_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(tables_.as(), staging_.as(), static_cast<size_t>(writer.used()),
                                 cudaMemcpyHostToDevice, stream),
                 "copying a step's tables to the device"));
  return copied_.Record(stream);
}

}  // namespace warpline::cuda
