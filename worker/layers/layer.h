// What the stage model sees of its layers, and what they need of the stage.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "worker/layers/workspace.h"
#include "worker/rope.h"

namespace warpline {

// Borrowed for one run.
struct LayerContext {
  Backend& backend;
  const Workspace& workspace;
  const RopeTable& rope;
  const RopeTable& rope_local;  // of layers with a sliding window
};

// Where a part of a layer leaves its rows [rows, n_embd]: out = y, or out += y.
struct Sink {
  Tensor out;
  bool accumulate = false;
};

// Mixes tokens: attention or Gated DeltaNet. Owned by its layer; used by the stage executor's
// thread alone.
class Mixer {
 public:
  virtual ~Mixer() = default;
  // `in` [rows, n_embd]; may use all of the workspace but residual, normed, branch and inject.
  virtual absl::Status Run(const LayerContext& context, const Tensor& in,
                           const Sink& sink) const = 0;
  // Forgets what the slot's sequence left behind, but for pages: those belong to the slot table.
  virtual absl::Status ResetSlot(int kv_slot) const = 0;
};

// Owned by the stage model; used by the stage executor's thread alone.
class Layer {
 public:
  virtual ~Layer() = default;
  // Runs the step's rows, in place in `residual` [rows, residual_width], which is
  // workspace.residual.
  virtual absl::Status Run(const LayerContext& context, const Tensor& residual) const = 0;
  virtual absl::Status ResetSlot(int kv_slot) const = 0;
};

}  // namespace warpline
