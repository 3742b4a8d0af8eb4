#include "kernels/cpu/cpu_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace warpline {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kArenaBlock = int64_t{32} << 20;
constexpr int64_t kSpare = 64;  // kernels load whole registers beyond a ragged end
constexpr int64_t kLargest = int64_t{1} << 46;

int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

absl::Status OutOfMemory(int64_t byte_count) {
  return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", byte_count, " bytes"));
}

}  // namespace

absl::StatusOr<CpuMemory> CpuMemory::Create(int64_t byte_count) {
  if (byte_count < 0)
    return absl::InvalidArgumentError(absl::StrCat("size of ", byte_count, " bytes"));
  if (byte_count > kLargest) return OutOfMemory(byte_count);
  CpuMemory memory;
  if (byte_count < kHugePage) {
    memory.byte_count_ = std::max(RoundUp(byte_count, kAlignment), kAlignment);
    memory.data_ = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, memory.byte_count_));
    if (memory.data_ == nullptr) return OutOfMemory(byte_count);
    std::memset(memory.data_, 0, memory.byte_count_);
    return memory;
  }
  const int64_t size = RoundUp(byte_count, kHugePage);
  const int64_t mapped = size + kHugePage;
  void* where = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (where == MAP_FAILED) return OutOfMemory(byte_count);
  // Keep the part that starts at a huge page.
  uint8_t* start = static_cast<uint8_t*>(where);
  const int64_t before =
      RoundUp(reinterpret_cast<intptr_t>(start), kHugePage) - reinterpret_cast<intptr_t>(start);
  if (before > 0) munmap(start, before);
  if (mapped - before - size > 0) munmap(start + before + size, mapped - before - size);
  memory.data_ = start + before;
  memory.byte_count_ = size;
  madvise(memory.data_, size,
          MADV_HUGEPAGE);  // A wish; without huge pages everything works, a little slower.
  return memory;
}

CpuMemory::~CpuMemory() {
  if (data_ == nullptr) return;
  if (byte_count_ < kHugePage) {
    std::free(data_);
  } else {
    munmap(data_, byte_count_);
  }
}

absl::StatusOr<uint8_t*> CpuArena::Allocate(int64_t byte_count) {
  if (byte_count < 0 || byte_count > kLargest) return OutOfMemory(byte_count);
  const int64_t needed = RoundUp(byte_count + kSpare, kAlignment);
  if (blocks_.empty() || used_ + needed > blocks_.back().byte_count()) {
    WL_ASSIGN_OR_RETURN(CpuMemory block, CpuMemory::Create(std::max(needed, kArenaBlock)));
    blocks_.push_back(std::move(block));
    used_ = 0;
  }
  uint8_t* piece = blocks_.back().data() + used_;
  used_ += needed;
  return piece;
}

absl::StatusOr<float*> CpuScratch::Floats(int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float)) + kSpare;
  if (memory_.byte_count() < bytes) {
    WL_ASSIGN_OR_RETURN(memory_, CpuMemory::Create(bytes));
  }
  return reinterpret_cast<float*>(memory_.data());
}

CpuWeight::CpuWeight(const WeightArgs& args, const uint8_t* data)
    : type_(args.type),
      input_width_(args.input_width),
      output_width_(args.output_width),
      expert_count_(args.expert_count),
      column_bytes_(RowBytes(args.type, args.input_width)),
      data_(data),
      scales_(args.scales.begin(), args.scales.end()) {}

absl::Status CpuSlotState::Reset(int kv_slot) {
  if (kv_slot < 0 || kv_slot >= args_.slot_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_slot ", kv_slot, " of a state of ", args_.slot_count));
  }
  std::fill_n(Slot(kv_slot), args_.value_count, 0.0f);
  return absl::OkStatus();
}

absl::StatusOr<KvLayout> MakeKvLayout(KvType type, int head_dim) {
  KvLayout layout{.type = type, .head_dim = head_dim};
  const int64_t values = int64_t{kPageTokens} * head_dim;
  int64_t value_bytes = type == KvType::kF32 ? 4 : 2;
  int64_t scales = 0;
  if (type == KvType::kQ8_0) {
    layout.group = head_dim % 32 == 0 ? 32 : head_dim % 16 == 0 ? 16 : 8;
    if (head_dim % layout.group != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "an int8 KV cache needs a head size that is a multiple of 8, not ", head_dim));
    }
    value_bytes = 1;
    scales = values / layout.group;
  }
  layout.value_offset = values * value_bytes;
  layout.key_scale_offset = 2 * values * value_bytes;
  layout.value_scale_offset = layout.key_scale_offset + 2 * scales;
  layout.head_bytes = RoundUp(layout.value_scale_offset + 2 * scales, kAlignment);
  return layout;
}

}  // namespace warpline
