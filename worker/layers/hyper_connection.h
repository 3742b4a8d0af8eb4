// Between a wide residual and the layers' rows: mixes the streams down.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/model_spec.h"
#include "worker/layers/layer.h"
#include "worker/stage_weights.h"

namespace warpline {

// Owned by its layer or by the stage model; used by the stage executor's thread alone.
class HyperConnection {
 public:
  enum class Inject { kNone, kYes };
  // `prefix` such as "blk.3.hc_attn_".
  static absl::StatusOr<HyperConnection> Load(WeightLoader& loader, const ModelSpec& spec,
                                              const std::string& prefix, Inject inject);

  // The streams of `wide` become `out` [rows, n_embd]; what Combine needs is left in
  // workspace.inject.
  absl::Status Mix(const LayerContext& context, const Tensor& wide, const Tensor& out) const;
  // Adds `y` [rows, n_embd] to the streams of `wide`, as the last Mix of these rows weighted them.
  absl::Status Combine(const LayerContext& context, const Tensor& wide, const Tensor& y) const;

 private:
  HyperConnection() = default;
  Tensor InjectRows(const LayerContext& context, int64_t row_count) const;

  int stream_count_ = 0;
  float eps_ = 0;
  std::unique_ptr<Buffer> gamma_;  // [residual_width]
  Matrix down_;
  Matrix up_;
  Matrix inject_;  // without weight: the last mix, which nothing is combined with
};

}  // namespace warpline
