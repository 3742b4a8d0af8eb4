// Which back end a worker computes with.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/model_spec.h"
#include "worker/config.h"

namespace warpline {

// The back end that the config names. NotFound or FailedPrecondition, in a sentence for people,
// where this machine or this build has none.
absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(const WorkerConfig& config);

// FailedPrecondition where the model needs an operation that the back end does not have.
absl::Status CheckModelRuns(const WorkerConfig& config, const ModelSpec& spec);

}  // namespace warpline
