#include "coordinator/capacity_plan.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/cache_allocator.h"

namespace warpline {
namespace {

std::optional<int64_t> NumberInFile(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  int64_t number = 0;
  if (!(file >> text) || !absl::SimpleAtoi(text, &number)) return std::nullopt;  // "max": no limit
  return number;
}

}  // namespace

CacheFormat FormatOf(v1::KvCacheType kv_type) {
  switch (kv_type) {
    case v1::KV_CACHE_TYPE_F32:
      return CacheFormat::kF32;
    case v1::KV_CACHE_TYPE_Q8_0:
      return CacheFormat::kQ8_0;
    default:
      return CacheFormat::kF16;
  }
}

StateBytes BytesOfState(const ModelSpec& spec, const LayerRange& layers, v1::KvCacheType kv_type) {
  return StateBytesOf(spec, layers, FormatOf(kv_type));
}

absl::StatusOr<CapacityPlan> PlanCapacity(const CapacityArgs& args) {
  CapacityPlan plan{.context = args.context,
                    .configured_context = args.context,
                    .slot_count = args.slot_count,
                    .page_count = PagesFor(args.context) * args.slot_count};
  if (!args.cache_bytes_limit.has_value()) return plan;
  const int64_t left = *args.cache_bytes_limit - args.slot_bytes * args.slot_count;
  if (left < 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no memory for ", args.slot_count, " sequences at once (--parallel): each takes ",
        args.slot_bytes, " bytes beside its tokens, ", *args.cache_bytes_limit, " are left"));
  }
  if (args.page_bytes == 0) return plan;
  const int64_t pages_that_fit = left / args.page_bytes;
  if (pages_that_fit == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no memory for a cache: one page of ", kPageTokens, " tokens takes ",
                     args.page_bytes, " bytes, ", left, " are left"));
  }
  plan.page_count = std::min(plan.page_count, pages_that_fit);
  plan.context = std::min(plan.context, plan.page_count * kPageTokens);
  return plan;
}

std::optional<int64_t> AvailableMemoryBytes() {
  std::ifstream file("/proc/meminfo");
  std::optional<int64_t> available;
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (file >> key >> kib >> unit) {
    if (key == "MemAvailable:") {
      available = kib * 1024;
      break;
    }
  }
  const std::optional<int64_t> limit = NumberInFile("/sys/fs/cgroup/memory.max");
  const std::optional<int64_t> used = NumberInFile("/sys/fs/cgroup/memory.current");
  if (!limit.has_value() || !used.has_value()) return available;
  const int64_t left = std::max<int64_t>(0, *limit - *used);
  return available.has_value() ? std::min(*available, left) : left;
}

}  // namespace warpline
