#include "worker/control_check.h"

#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/stage_protocol.h"

namespace warpline {
namespace {

constexpr uint64_t kMaxPages = std::numeric_limits<int32_t>::max();
constexpr uint64_t kMaxContext = uint64_t{1} << 32;
constexpr uint64_t kMaxHandOffBytes = 60 << 20;  // A step must fit into a message with its ids.

template <typename Theirs, typename Ours>
absl::Status Mismatch(absl::string_view field, const Theirs& theirs, const Ours& ours) {
  return absl::FailedPreconditionError(
      absl::StrCat("assignment: ", field, " is ", theirs, ", this worker has ", ours));
}

absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return Mismatch(field, value, absl::StrCat("a range of ", least, " to ", most));
}

absl::Status CheckModel(const v1::Assign& assign, const StageFacts& facts) {
  if (assign.protocol_version() != kStageProtocolVersion) {
    return Mismatch("protocol_version", assign.protocol_version(), kStageProtocolVersion);
  }
  if (assign.fingerprint() != facts.fingerprint) {
    return Mismatch("fingerprint", assign.fingerprint(), facts.fingerprint);
  }
  if (assign.layer_count() != static_cast<uint32_t>(facts.n_layer)) {
    return Mismatch("layer_count", assign.layer_count(), facts.n_layer);
  }
  if (assign.width() != static_cast<uint32_t>(facts.residual_width)) {
    return Mismatch("width", assign.width(), facts.residual_width);
  }
  return absl::OkStatus();
}

absl::Status CheckPlace(const v1::Assign& assign) {
  const uint32_t layer_count = assign.layer_count();
  WL_RETURN_IF_ERROR(CheckRange("epoch", assign.epoch(), 1, std::numeric_limits<uint64_t>::max()));
  WL_RETURN_IF_ERROR(CheckRange("stage_count", assign.stage_count(), 1, layer_count));
  WL_RETURN_IF_ERROR(CheckRange("stage", assign.stage(), 0, assign.stage_count() - 1));
  WL_RETURN_IF_ERROR(CheckRange("layer_end", assign.layer_end(), 1, layer_count));
  WL_RETURN_IF_ERROR(CheckRange("layer_begin", assign.layer_begin(), 0, assign.layer_end() - 1));
  const bool first = assign.stage() == 0;
  const bool last = assign.stage() == assign.stage_count() - 1;
  if (first != (assign.layer_begin() == 0)) {
    return Mismatch("layer_begin", assign.layer_begin(), absl::StrCat("stage ", assign.stage()));
  }
  if (last != (assign.layer_end() == layer_count)) {
    return Mismatch("layer_end", assign.layer_end(),
                    absl::StrCat("stage ", assign.stage(), " of ", assign.stage_count(), " and ",
                                 layer_count, " layers"));
  }
  if (last != assign.next_address().empty()) {
    return Mismatch("next_address", absl::StrCat("'", assign.next_address(), "'"),
                    absl::StrCat("stage ", assign.stage(), " of ", assign.stage_count()));
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const v1::Assign& assign) {
  WL_RETURN_IF_ERROR(CheckRange("slot_count", assign.slot_count(), 1, kMaxSlots));
  WL_RETURN_IF_ERROR(CheckRange("page_count", assign.page_count(), 1, kMaxPages));
  WL_RETURN_IF_ERROR(CheckRange("max_context", assign.max_context(), 1, kMaxContext));
  WL_RETURN_IF_ERROR(CheckRange("configured_context", assign.configured_context(), 0, kMaxContext));
  const uint64_t row_bytes = uint64_t{assign.width()} * sizeof(float);
  WL_RETURN_IF_ERROR(
      CheckRange("max_chunk_rows", assign.max_chunk_rows(), 1, kMaxHandOffBytes / row_bytes));
  if (!v1::EdgeKind_IsValid(assign.next_edge())) {
    return Mismatch("next_edge", static_cast<int>(assign.next_edge()), "AUTO, SHM and GRPC");
  }
  if (!v1::KvCacheType_IsValid(assign.kv_type())) {
    return Mismatch("kv_type", static_cast<int>(assign.kv_type()), "F16, F32 and Q8_0");
  }
  return absl::OkStatus();
}

KvType KvTypeFromProto(v1::KvCacheType type) {
  if (type == v1::KV_CACHE_TYPE_F32) return KvType::kF32;
  return type == v1::KV_CACHE_TYPE_Q8_0 ? KvType::kQ8_0 : KvType::kF16;
}

}  // namespace

absl::StatusOr<StageAssignment> CheckAssign(const v1::Assign& assign, const StageFacts& facts) {
  WL_RETURN_IF_ERROR(CheckModel(assign, facts));
  WL_RETURN_IF_ERROR(CheckPlace(assign));
  WL_RETURN_IF_ERROR(CheckSizes(assign));
  return StageAssignment{
      .epoch = assign.epoch(),
      .stage = static_cast<int>(assign.stage()),
      .stage_count = static_cast<int>(assign.stage_count()),
      .layers = {.begin = static_cast<int>(assign.layer_begin()),
                 .end = static_cast<int>(assign.layer_end())},
      .next_address = assign.next_address(),
      .next_edge = assign.next_edge(),
      .kv_type = KvTypeFromProto(assign.kv_type()),
      .slot_count = static_cast<int>(assign.slot_count()),
      .page_count = static_cast<int64_t>(assign.page_count()),
      .max_context = static_cast<int64_t>(assign.max_context()),
      .configured_context = static_cast<int64_t>(
          assign.configured_context() == 0 ? assign.max_context() : assign.configured_context()),
      .max_chunk_rows = static_cast<int>(assign.max_chunk_rows())};
}

}  // namespace warpline
