// What a worker checks of its share before it takes it.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/stage.pb.h"
#include "worker/stage_facts.h"
#include "worker/stage_links.h"

namespace warpline {

// FailedPrecondition naming the field and both values where `assign` does not fit this worker's
// model or itself.
absl::StatusOr<StageAssignment> CheckAssign(const v1::Assign& assign, const StageFacts& facts);

}  // namespace warpline
