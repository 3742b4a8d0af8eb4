#include "kernels/cuda/step_recorder.h"

#include <utility>

namespace warpline::cuda {
namespace {

constexpr size_t kMostRecords = 256;  // a few MiB of device memory each for large models

}  // namespace

void StepRecorder::Begin(const StepShape& shape) {
  if (records_.size() >= kMostRecords && records_.count(shape.key()) == 0) records_.clear();
  const auto [found, is_new] = records_.try_emplace(shape.key());
  record_ = &found->second;
  mode_ = is_new ? Mode::kFirst : record_->is_made ? Mode::kReplay : Mode::kRecord;
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

absl::Status StepRecorder::End(cudaStream_t stream) {
  const Mode mode = std::exchange(mode_, Mode::kPlain);
  if ((mode != Mode::kRecord && mode != Mode::kReplay) || op_count_ == 0) return absl::OkStatus();
  if (mode == Mode::kRecord) {
    WL_ASSIGN_OR_RETURN(record_->graph, Graph::End(stream));
    record_->digest = digest_;
    record_->is_made = true;
  } else if (record_->digest != digest_) {
    return absl::InternalError("a decode step has other operations than its record");
  }
  return record_->graph.Launch(stream);
}

}  // namespace warpline::cuda
