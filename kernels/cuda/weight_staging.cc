#include "kernels/cuda/weight_staging.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/cuda/cuda_status.h"

namespace warpline::cuda {
namespace {

// One thread copies 5 to 10 GB/s out of the page cache, a card fetches 50.
constexpr int kCopyThreads = 4;
constexpr int kSlotsOfThread = 2;  // one is filled while the other is fetched
constexpr int64_t kPieceBytes = int64_t{4} << 20;

}  // namespace

struct WeightStaging::CopyJob {
  absl::Span<const uint8_t> bytes;
  uint8_t* to = nullptr;
  cudaStream_t stream = nullptr;
  std::atomic<int64_t> next_piece{0};

  int64_t piece_count() const {
    return (static_cast<int64_t>(bytes.size()) + kPieceBytes - 1) / kPieceBytes;
  }
};

absl::StatusOr<DeviceBuffer> WeightStaging::Take(int64_t bytes) {
  const auto fits = [bytes](const DeviceBuffer& buffer) { return buffer.bytes() == bytes; };
  const auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found != free_.end()) {
    DeviceBuffer buffer = std::move(*found);
    free_.erase(found);
    return buffer;
  }
  absl::StatusOr<DeviceBuffer> created = DeviceBuffer::Create(bytes);
  if (created.ok() || free_.empty()) return created;
  free_.clear();
  return DeviceBuffer::Create(bytes);
}

void WeightStaging::Give(DeviceBuffer buffer) {
  if (!slots_.empty()) free_.push_back(std::move(buffer));
}

absl::Status WeightStaging::Open() {
  if (!slots_.empty()) return absl::OkStatus();
  constexpr int kSlots = kCopyThreads * kSlotsOfThread;
  WL_ASSIGN_OR_RETURN(pinned_, PinnedBuffer::Create(kSlots * kPieceBytes));
  std::vector<Slot> slots(kSlots);
  for (int i = 0; i < kSlots; ++i) {
    slots[i].memory = pinned_.as() + i * kPieceBytes;
    WL_ASSIGN_OR_RETURN(slots[i].fetched, Event::Create(Event::Use::kOrder));
  }
  slots_ = std::move(slots);
  return absl::OkStatus();
}

void WeightStaging::Finish() {
  free_.clear();
  slots_.clear();
  pinned_ = PinnedBuffer();
}

absl::Status WeightStaging::CopyPieces(CopyJob& job, Slot* slots) const {
  // A device is current for one thread only.
  WL_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_), "choosing the device of a weight"));
  for (int turn = 0;; turn = (turn + 1) % kSlotsOfThread) {
    const int64_t piece = job.next_piece.fetch_add(1, std::memory_order_relaxed);
    if (piece >= job.piece_count()) return absl::OkStatus();
    const Slot& slot = slots[turn];
    const int64_t begin = piece * kPieceBytes;
    const auto bytes = job.bytes.subspan(static_cast<size_t>(begin), kPieceBytes);
    WL_RETURN_IF_ERROR(
        CudaStatus(cudaEventSynchronize(slot.fetched.get()), "waiting for a part of a weight"));
    std::memcpy(slot.memory, bytes.data(), bytes.size());
    WL_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(job.to + begin, slot.memory, bytes.size(),
                                                  cudaMemcpyHostToDevice, job.stream),
                                  "copying a weight to the device"));
    WL_RETURN_IF_ERROR(slot.fetched.Record(job.stream));
  }
}

absl::Status WeightStaging::Copy(absl::Span<const uint8_t> bytes, uint8_t* to,
                                 cudaStream_t stream) {
  WL_RETURN_IF_ERROR(Open());
  CopyJob job{.bytes = bytes, .to = to, .stream = stream};
  const auto wanted = static_cast<int>(std::min<int64_t>(kCopyThreads, job.piece_count()));
  std::array<absl::Status, kCopyThreads> results;
  std::vector<std::thread> helpers;
  for (int i = 1; i < wanted; ++i) {
    try {
      helpers.emplace_back([this, &job, &results, i] {
        results[i] = CopyPieces(job, slots_.data() + i * kSlotsOfThread);
      });
    } catch (const std::system_error&) {
      break;  // Pieces are shared out as they are taken, so fewer threads copy all of them too.
    }
  }
  results[0] = CopyPieces(job, slots_.data());
  for (std::thread& helper : helpers) helper.join();
  for (const absl::Status& result : results) WL_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

}  // namespace warpline::cuda
