#include "coordinator/capacity_plan.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/cache_allocator.h"

namespace warpline {
namespace {

constexpr int64_t kQ8BlockValues = 32;
constexpr int64_t kQ8BlockBytes = 34;

int64_t HeadBytes(int64_t head_dim, v1::KvCacheType kv_type) {
  switch (kv_type) {
    case v1::KV_CACHE_TYPE_F32:
      return head_dim * 4;
    case v1::KV_CACHE_TYPE_Q8_0:
      return (head_dim + kQ8BlockValues - 1) / kQ8BlockValues * kQ8BlockBytes;
    default:
      return head_dim * 2;
  }
}

std::optional<int64_t> NumberInFile(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  int64_t number = 0;
  if (!(file >> text) || !absl::SimpleAtoi(text, &number)) return std::nullopt;  // "max": no limit
  return number;
}

}  // namespace

int64_t PageBytes(const ModelSpec& spec, const LayerRange& layers, v1::KvCacheType kv_type) {
  int64_t bytes = 0;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    const int64_t keys_and_values = 2 * int64_t{spec.layers[layer].n_head_kv};
    bytes += kPageTokens * keys_and_values * HeadBytes(spec.head_dim, kv_type);
  }
  return bytes;
}

absl::StatusOr<CapacityPlan> PlanCapacity(const CapacityArgs& args) {
  CapacityPlan plan{.context = args.context,
                    .configured_context = args.context,
                    .slot_count = args.slot_count,
                    .page_count = PagesFor(args.context) * args.slot_count};
  if (!args.cache_bytes_limit.has_value() || args.page_bytes == 0) return plan;
  const int64_t pages_that_fit = std::max<int64_t>(0, *args.cache_bytes_limit / args.page_bytes);
  if (pages_that_fit == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no memory for a cache: one page of ", kPageTokens, " tokens takes ",
                     args.page_bytes, " bytes, ", *args.cache_bytes_limit, " are left"));
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
