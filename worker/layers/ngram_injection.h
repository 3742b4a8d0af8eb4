// Adds what the n-gram table (PLE) knows about the last tokens to a wide residual.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/model_spec.h"
#include "worker/layers/layer.h"
#include "worker/layers/mixers.h"
#include "worker/stage_weights.h"

namespace warpline {

// Owned by its layer; used by the stage executor's thread alone.
class NgramInjection {
 public:
  static absl::StatusOr<NgramInjection> Load(WeightLoader& loader, const ModelSpec& spec, int layer,
                                             const StatePlan& state, Backend& backend);

  // Takes the table's rows of the step's tokens from workspace.ngrams [rows, n_embd].
  absl::Status Run(const LayerContext& context, const Tensor& wide) const;
  absl::Status ResetSlot(int kv_slot) const { return columns_->Reset(kv_slot); }

 private:
  NgramInjection() = default;

  int n_embd_ = 0;
  int stream_count_ = 0;
  int conv_kernel_ = 0;
  int dilation_ = 0;
  float eps_ = 0;
  Matrix key_;
  Matrix value_;
  std::unique_ptr<Buffer> key_gamma_;  // [residual_width], as the next two
  std::unique_ptr<Buffer> query_gamma_;
  std::unique_ptr<Buffer> conv_gamma_;
  std::unique_ptr<Buffer> kernel_;      // [conv_kernel, residual_width]
  std::unique_ptr<SlotState> columns_;  // [(conv_kernel - 1) * dilation, residual_width]
};

}  // namespace warpline
