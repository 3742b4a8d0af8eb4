#include "kernels/cuda/step_recorder.h"

#include <utility>

namespace warpline::cuda {
namespace {

constexpr size_t kMostRecords = 256;  // a few MiB of device memory each for large models
constexpr size_t kLeastFreeBytes = size_t{64} << 20;  // or a record might not fit

bool HasRoom() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  return cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess || free_bytes >= kLeastFreeBytes;
}

}  // namespace

void StepRecorder::Begin(const StepShape& shape) {
  if (records_.size() >= kMostRecords && records_.count(shape.key()) == 0) records_.clear();
  const auto [found, is_new] = records_.try_emplace(shape.key());
  record_ = &found->second;
  const bool comes_again = !is_new && !record_->is_made;
  if (comes_again && !record_->is_too_large) record_->is_too_large = !HasRoom();
  mode_ = is_new                  ? Mode::kFirst
          : record_->is_made      ? Mode::kReplay
          : record_->is_too_large ? Mode::kPlain
                                  : Mode::kRecord;
  digest_ = 0;
  op_count_ = 0;
}

absl::StatusOr<bool> StepRecorder::EnterOp(uint64_t digest, cudaStream_t stream) {
  if (!is_recorded()) return true;
  digest_ = Digest(digest_, digest);
  ++op_count_;
  if (mode_ == Mode::kReplay) return false;
  if (op_count_ == 1) WL_RETURN_IF_ERROR(Graph::Begin(stream));
  return true;
}

void StepRecorder::Abandon(cudaStream_t stream) {
  const Mode mode = std::exchange(mode_, Mode::kPlain);
  // The graph is of no use, nor is why there may be none.
  if (mode == Mode::kRecord && op_count_ > 0) (void)Graph::End(stream);
  // The first step of this shape did not allocate all that the next ones rely on.
  if (mode != Mode::kReplay) Forget();
}

absl::Status StepRecorder::End(cudaStream_t stream) {
  const bool has_ops = op_count_ > 0 || !needs_ops();
  const Mode mode = std::exchange(mode_, Mode::kPlain);
  if ((mode != Mode::kRecord && mode != Mode::kReplay) || !has_ops) return absl::OkStatus();
  if (mode == Mode::kRecord) {
    absl::StatusOr<Graph> recorded = Graph::End(stream);
    if (!recorded.ok()) {
      if (absl::IsResourceExhausted(recorded.status())) {
        record_->is_too_large = true;
      } else {
        Forget();  // The first step of this shape did not get as far as this one.
      }
      return recorded.status();
    }
    record_->graph = *std::move(recorded);
    record_->digest = digest_;
    record_->is_made = true;
  } else if (op_count_ > 0) {
    if (record_->digest != digest_) {
      return absl::InternalError("a decode step has other operations than its record");
    }
    record_->is_checked = true;
  }
  return record_->graph.Launch(stream);
}

}  // namespace warpline::cuda
