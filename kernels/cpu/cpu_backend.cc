#include "kernels/cpu/cpu_backend.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cpu/cpu_backend_impl.h"
#include "kernels/cpu/op_checks.h"
#include "kernels/weight_args.h"

namespace warpline {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxHeadDim = 1024;
constexpr int64_t kSpareBytes = 64;  // kernels load whole registers beyond a ragged end

int UsableProcessors() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) return 1;
  return std::max(1, CPU_COUNT(&usable));
}

absl::Status CheckRange(const Buffer& buffer, int64_t offset_bytes, size_t byte_count) {
  const int64_t count = static_cast<int64_t>(byte_count);
  if (offset_bytes >= 0 && count <= buffer.byte_count() &&
      offset_bytes <= buffer.byte_count() - count) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(count, " bytes at ", offset_bytes, " of a buffer of ", buffer.byte_count()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuOptions& options) {
  if (options.thread_count < 0 || options.thread_count > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.thread_count, " threads; 0 to ", kMaxThreads));
  }
  WL_ASSIGN_OR_RETURN(const InstructionSet set, DetectInstructionSet(options.instruction_set));
  const int threads = options.thread_count > 0 ? options.thread_count : UsableProcessors();
  return std::make_unique<CpuBackend>(set, threads);
}

CpuBackend::CpuBackend(InstructionSet set, int thread_count)
    : set_(set),
      row_(GetRowKernels(set)),
      hybrid_(GetHybridKernels(set)),
      pool_(thread_count),
      product_(set, pool_),
      attention_(set, pool_),
      moe_(set, pool_, product_),
      selector_(set, pool_) {}

std::string CpuBackend::Describe() const {
  return absl::StrCat("cpu instruction_set=", InstructionSetName(set_),
                      " threads=", pool_.thread_count());
}

absl::StatusOr<std::unique_ptr<Buffer>> CpuBackend::Allocate(int64_t byte_count) {
  if (byte_count < 0)
    return absl::InvalidArgumentError(absl::StrCat("a buffer of ", byte_count, " bytes"));
  WL_ASSIGN_OR_RETURN(CpuMemory memory, CpuMemory::Create(byte_count));
  return std::make_unique<CpuBuffer>(std::move(memory), byte_count);
}

absl::Status CpuBackend::Upload(absl::Span<const uint8_t> bytes, Buffer& buffer,
                                int64_t offset_bytes) {
  WL_RETURN_IF_ERROR(CheckRange(buffer, offset_bytes, bytes.size()));
  if (!bytes.empty())
    std::memcpy(static_cast<CpuBuffer&>(buffer).data() + offset_bytes, bytes.data(), bytes.size());
  return absl::OkStatus();
}

absl::Status CpuBackend::Download(const Buffer& buffer, int64_t offset_bytes,
                                  absl::Span<uint8_t> bytes) {
  WL_RETURN_IF_ERROR(CheckRange(buffer, offset_bytes, bytes.size()));
  if (!bytes.empty()) {
    std::memcpy(bytes.data(), static_cast<const CpuBuffer&>(buffer).data() + offset_bytes,
                bytes.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Weight>> CpuBackend::LoadWeight(const WeightArgs& args) {
  WL_RETURN_IF_ERROR(CheckWeightArgs(args));
  WL_ASSIGN_OR_RETURN(uint8_t * data, arena_.Allocate(static_cast<int64_t>(args.data.size())));
  std::memcpy(data, args.data.data(), args.data.size());
  WL_RETURN_IF_ERROR(product_.Reserve(args.input_width));
  return std::make_unique<CpuWeight>(args, data);
}

absl::StatusOr<std::unique_ptr<KvCache>> CpuBackend::CreateKvCache(const KvCacheArgs& args) {
  if (args.n_head_kv <= 0 || args.head_dim <= 0 || args.head_dim > kMaxHeadDim ||
      args.page_count < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a KV cache of ", args.page_count, " pages, ",
                                                   args.n_head_kv, " heads of size ",
                                                   args.head_dim));
  }
  WL_ASSIGN_OR_RETURN(const KvLayout layout, MakeKvLayout(args.type, args.head_dim));
  int64_t bytes = layout.head_bytes;
  if (__builtin_mul_overflow(bytes, args.n_head_kv, &bytes) ||
      __builtin_mul_overflow(bytes, args.page_count, &bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("a KV cache of ", args.page_count, " pages"));
  }
  WL_ASSIGN_OR_RETURN(CpuMemory memory, CpuMemory::Create(bytes + kSpareBytes));
  WL_RETURN_IF_ERROR(attention_.Reserve(args.head_dim));
  return std::make_unique<CpuKvCache>(args, layout, std::move(memory));
}

absl::StatusOr<std::unique_ptr<SlotState>> CpuBackend::CreateSlotState(const SlotStateArgs& args) {
  int64_t bytes = sizeof(float);
  if (args.slot_count <= 0 || args.value_count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a state of ", args.slot_count, " slots of ", args.value_count, " values"));
  }
  if (__builtin_mul_overflow(bytes, args.slot_count, &bytes) ||
      __builtin_mul_overflow(bytes, args.value_count, &bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("a state of ", args.value_count, " values"));
  }
  WL_ASSIGN_OR_RETURN(CpuMemory memory, CpuMemory::Create(bytes + kSpareBytes));
  return std::make_unique<CpuSlotState>(args, std::move(memory));
}

absl::Status CpuBackend::Reserve(int64_t max_rows, int64_t max_context) {
  if (max_rows < 0 || max_context < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("reserve ", max_rows, " rows, context ", max_context));
  }
  max_rows_ = max_rows;
  step_.Reserve(max_rows, max_context);
  return absl::OkStatus();
}

absl::Status CpuBackend::BeginStep(const StepArgs& args) {
  WL_RETURN_IF_ERROR(step_.Begin(args));
  rope_tables_.BeginStep();
  pool_.BeginStep();
  return absl::OkStatus();
}

absl::Status CpuBackend::EndStep() {
  WL_RETURN_IF_ERROR(CheckInStep());
  pool_.EndStep();
  step_.End();
  return absl::OkStatus();
}

absl::Status CpuBackend::CheckInStep() const {
  return step_.active() ? absl::OkStatus() : absl::InvalidArgumentError("no step is open");
}

}  // namespace warpline
