// What the CPU back end allocates: memory in huge pages, buffers, weights, KV caches.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/simd_kernels.h"

namespace warpline {

// A zeroed block of memory, aligned to 64 bytes; large ones in 2 MiB pages where the system has
// them.
class CpuMemory {
 public:
  CpuMemory() = default;
  // ResourceExhausted when the system has no more, InvalidArgument for a negative size.
  static absl::StatusOr<CpuMemory> Create(int64_t byte_count);
  ~CpuMemory();
  CpuMemory(CpuMemory&& other) noexcept { *this = std::move(other); }
  CpuMemory& operator=(CpuMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(byte_count_, other.byte_count_);
    return *this;
  }

  uint8_t* data() const { return data_; }
  int64_t byte_count() const { return byte_count_; }

 private:
  uint8_t* data_ = nullptr;
  int64_t byte_count_ = 0;  // as mapped
};

// Memory that is given out in pieces and freed as a whole: many small matrices share huge pages.
class CpuArena {
 public:
  // Aligned to 64 bytes, with at least 64 spare bytes behind it.
  absl::StatusOr<uint8_t*> Allocate(int64_t byte_count);

 private:
  std::vector<CpuMemory> blocks_;
  int64_t used_ = 0;  // bytes of the last block
};

// Scratch that only grows; what it held is lost when it does.
class CpuScratch {
 public:
  absl::StatusOr<float*> Floats(int64_t count);

 private:
  CpuMemory memory_;
};

class CpuBuffer final : public Buffer {
 public:
  CpuBuffer(CpuMemory memory, int64_t byte_count)
      : memory_(std::move(memory)), byte_count_(byte_count) {}
  int64_t byte_count() const override { return byte_count_; }
  uint8_t* data() const { return memory_.data(); }
  float* floats() const { return reinterpret_cast<float*>(memory_.data()); }
  int64_t float_count() const { return byte_count_ / static_cast<int64_t>(sizeof(float)); }

 private:
  CpuMemory memory_;
  int64_t byte_count_;
};

// Rows of the file's blocks, one for each output column, experts one after another. The bytes lie
// in the back end's arena.
class CpuWeight final : public Weight {
 public:
  CpuWeight(const WeightArgs& args, const uint8_t* data);
  QuantType type() const override { return type_; }
  int64_t input_width() const override { return input_width_; }
  int64_t output_width() const override { return output_width_; }
  int64_t expert_count() const override { return expert_count_; }

  int64_t column_bytes() const { return column_bytes_; }
  const uint8_t* Column(int64_t expert, int64_t column) const {
    return data_ + (expert * output_width_ + column) * column_bytes_;
  }
  float Scale(int64_t expert) const {
    if (scales_.empty()) return 1;
    return scales_.size() == 1 ? scales_[0] : scales_[expert];
  }

 private:
  QuantType type_;
  int64_t input_width_, output_width_, expert_count_, column_bytes_;
  const uint8_t* data_;
  std::vector<float> scales_;
};

class CpuKvCache final : public KvCache {
 public:
  CpuKvCache(const KvCacheArgs& args, const KvLayout& layout, CpuMemory memory)
      : args_(args), layout_(layout), memory_(std::move(memory)) {}
  const KvCacheArgs& args() const { return args_; }
  const KvLayout& layout() const { return layout_; }
  uint8_t* Page(int64_t page, int head) const {
    return memory_.data() + (page * args_.n_head_kv + head) * layout_.head_bytes;
  }

 private:
  KvCacheArgs args_;
  KvLayout layout_;
  CpuMemory memory_;
};

class CpuSlotState final : public SlotState {
 public:
  CpuSlotState(const SlotStateArgs& args, CpuMemory memory)
      : args_(args), memory_(std::move(memory)) {}
  absl::Status Reset(int kv_slot) override;
  const SlotStateArgs& args() const { return args_; }
  float* Slot(int kv_slot) const {
    return reinterpret_cast<float*>(memory_.data()) + kv_slot * args_.value_count;
  }

 private:
  SlotStateArgs args_;
  CpuMemory memory_;
};

// InvalidArgument: int8 with a head size that is no multiple of 8.
absl::StatusOr<KvLayout> MakeKvLayout(KvType type, int head_dim);

}  // namespace warpline
