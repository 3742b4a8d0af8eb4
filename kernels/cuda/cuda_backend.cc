#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_backend_impl.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/self_check.h"
#include "kernels/weight_args.h"

namespace warpline::cuda {
namespace {

absl::Status CheckRange(const Buffer& buffer, int64_t offset_bytes, size_t byte_count) {
  const int64_t count = static_cast<int64_t>(byte_count);
  if (offset_bytes >= 0 && count <= buffer.byte_count() &&
      offset_bytes <= buffer.byte_count() - count) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(count, " bytes at ", offset_bytes, " of a buffer of ", buffer.byte_count()));
}

// Makes it current too.
absl::StatusOr<Device> OpenDevice(int device) {
  WL_ASSIGN_OR_RETURN(const int count, Device::Count());
  if (device < 0 || device >= count) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no CUDA device ", device, "; the driver shows ", count));
  }
  WL_ASSIGN_OR_RETURN(Device opened, Device::Open(device));
  WL_RETURN_IF_ERROR(opened.MakeCurrent());
  return opened;
}

absl::StatusOr<DeviceMemory> MemoryOfCurrentDevice() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  WL_RETURN_IF_ERROR(
      CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for the memory of the device"));
  return DeviceMemory{.total = static_cast<int64_t>(total_bytes),
                      .free = static_cast<int64_t>(free_bytes)};
}

absl::Status ClosedStep() {
  return absl::InternalError("host memory is copied amid a recorded step");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const CudaOptions& options) {
  return CudaBackend::Create(options);
}

absl::StatusOr<DeviceMemory> DeviceMemoryOf(int device) {
  WL_ASSIGN_OR_RETURN(const Device opened, OpenDevice(device));
  return MemoryOfCurrentDevice();
}

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Create(const CudaOptions& options) {
  WL_ASSIGN_OR_RETURN(const absl::optional<Policy> tiles, ParseTiles(options.tiles));
  WL_ASSIGN_OR_RETURN(Device opened, OpenDevice(options.device));
  std::unique_ptr<CudaBackend> backend(new CudaBackend(std::move(opened)));
  backend->tiles_ = options.tiles;
  WL_RETURN_IF_ERROR(backend->Prepare(tiles));
  return backend;
}

absl::Status CudaBackend::Prepare(absl::optional<Policy> tiles) {
  WL_ASSIGN_OR_RETURN(stream_, Stream::Create());
  WL_ASSIGN_OR_RETURN(grids_, DeviceGrids::Create());
  WL_ASSIGN_OR_RETURN(kernels_, ExpertKernels::Create(device_));
  // A kernel that fails is left out, which Describe names; a type that has none left is refused
  // when a weight of it is loaded.
  const absl::Status checked = SelfCheck(*kernels_, kernels_->choices().Types());
  if (absl::IsInternal(checked)) return checked;
  if (tiles.has_value()) WL_RETURN_IF_ERROR(kernels_->choices().Restrict(*tiles));
  if (tiles == Policy::kOff) WL_RETURN_IF_ERROR(DenseProduct().Open());  // Is there a cuBLAS?
  WL_ASSIGN_OR_RETURN(products_, MatrixProducts::Create(*kernels_, grids_.grids()));
  WL_ASSIGN_OR_RETURN(attention_, PagedAttention::Create(device_));
  WL_ASSIGN_OR_RETURN(tables_, StepTables::Create());
  WL_ASSIGN_OR_RETURN(faults_, FaultInjection::Create());
  return absl::OkStatus();
}

std::string CudaBackend::Describe() const {
  return absl::StrCat("cuda ", CapabilityLine(*kernels_), "; tiles=", tiles_, "; attention ",
                      attention_->Describe(), "; memory_mib=", device_.facts().memory_bytes >> 20);
}

void CudaBackend::Notice(std::string sentence) {
  if (!sentence.empty() && told_.insert(sentence).second) notices_.push_back(std::move(sentence));
}

std::vector<std::string> CudaBackend::TakeNotices() { return std::exchange(notices_, {}); }

absl::StatusOr<std::unique_ptr<Buffer>> CudaBackend::Allocate(int64_t byte_count) {
  if (byte_count < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a buffer of ", byte_count, " bytes"));
  }
  ForgetRecords();
  WL_RETURN_IF_ERROR(device_.MakeCurrent());
  WL_ASSIGN_OR_RETURN(DeviceBuffer memory, DeviceBuffer::Create(byte_count));
  if (byte_count > 0) {
    WL_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(memory.as(), 0, static_cast<size_t>(byte_count), stream_.get()),
                   "clearing a buffer"));
  }
  return std::make_unique<CudaBuffer>(std::move(memory), byte_count);
}

// The bytes come from pageable memory, which is free again when the call returns.
absl::Status CudaBackend::Upload(absl::Span<const uint8_t> bytes, Buffer& buffer,
                                 int64_t offset_bytes) {
  WL_RETURN_IF_ERROR(CheckRange(buffer, offset_bytes, bytes.size()));
  if (bytes.empty()) return absl::OkStatus();
  if (recorder_.is_closed()) return ClosedStep();
  WL_RETURN_IF_ERROR(RunDeferred());
  products_->ForgetInput();
  return CudaStatus(
      cudaMemcpyAsync(static_cast<CudaBuffer&>(buffer).data() + offset_bytes, bytes.data(),
                      bytes.size(), cudaMemcpyHostToDevice, stream_.get()),
      "copying to the device");
}

absl::Status CudaBackend::Download(const Buffer& buffer, int64_t offset_bytes,
                                   absl::Span<uint8_t> bytes) {
  WL_RETURN_IF_ERROR(CheckRange(buffer, offset_bytes, bytes.size()));
  if (recorder_.is_closed()) return ClosedStep();
  WL_RETURN_IF_ERROR(RunDeferred());
  if (!bytes.empty()) {
    WL_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(bytes.data(), static_cast<const CudaBuffer&>(buffer).data() + offset_bytes,
                        bytes.size(), cudaMemcpyDeviceToHost, stream_.get()),
        "copying from the device"));
  }
  WL_RETURN_IF_ERROR(stream_.Synchronize());
  return CheckExpertIds();
}

absl::Status CudaBackend::CheckExpertIds() const {
  for (const auto& [key, planned] : experts_) {
    if (planned.product != nullptr && planned.product->has_bad_ids()) {
      return absl::InternalError("a step chose an expert that its layer does not have");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Weight>> CudaBackend::LoadWeight(const WeightArgs& args) {
  WL_RETURN_IF_ERROR(CheckWeightArgs(args));
  // Floats are multiplied without the expert kernels.
  if (args.type != QuantType::kF32) {
    WL_RETURN_IF_ERROR(CheckType(args.type, args.expert_count > 1));
  }
  ForgetRecords();
  WL_RETURN_IF_ERROR(device_.MakeCurrent());
  WL_ASSIGN_OR_RETURN(std::unique_ptr<CudaWeight> weight,
                      CudaWeight::Create(args, staging_, stream_.get()));
  if (args.only_multiplied && args.expert_count == 1 && args.type != QuantType::kF32) {
    WL_RETURN_IF_ERROR(weight->Packed(grids_.grids(), stream_.get()).status());
  }
  return weight;
}

// Refuses a type without kernels. Products of `off` wait for the host, so steps with them are not
// recorded.
absl::Status CudaBackend::CheckType(QuantType type, bool is_expert) {
  for (const Op op : {Op::kPlain, Op::kFewPlain, Op::kGateUp, Op::kFewGateUp}) {
    if (!is_expert && (op == Op::kGateUp || op == Op::kFewGateUp)) continue;
    WL_ASSIGN_OR_RETURN(const KernelSet* const set, kernels_->choices().For(op, type));
    if (set->policy == Policy::kOff) can_record_ = false;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<KvCache>> CudaBackend::CreateKvCache(const KvCacheArgs& args) {
  WL_RETURN_IF_ERROR(device_.MakeCurrent());
  WL_ASSIGN_OR_RETURN(CudaKvCache cache, CudaKvCache::Create(args));
  page_count_ = std::max(page_count_, args.page_count);
  if (args.n_head > 0) {
    Notice(attention_->WhyGeneric({.kv_type = args.type,
                                   .n_head = args.n_head,
                                   .n_head_kv = args.n_head_kv,
                                   .head_dim = args.head_dim}));
  }
  return std::make_unique<CudaKvCache>(std::move(cache));
}

absl::StatusOr<std::unique_ptr<SlotState>> CudaBackend::CreateSlotState(const SlotStateArgs& args) {
  int64_t bytes = sizeof(float);
  if (args.slot_count <= 0 || args.value_count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a state of ", args.slot_count, " slots of ", args.value_count, " values"));
  }
  if (__builtin_mul_overflow(bytes, args.slot_count, &bytes) ||
      __builtin_mul_overflow(bytes, args.value_count, &bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("a state of ", args.value_count, " values"));
  }
  WL_RETURN_IF_ERROR(device_.MakeCurrent());
  return CudaSlotState::Create(args, stream_.get());
}

absl::Status CudaBackend::Reserve(int64_t max_rows, int64_t max_context) {
  if (max_rows < 0 || max_context < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("reserve ", max_rows, " rows, context ", max_context));
  }
  max_rows_ = max_rows;
  max_context_ = max_context;
  ForgetRecords();
  step_.Reserve(max_rows, max_context);
  products_->Reserve(max_rows);
  WL_RETURN_IF_ERROR(device_.MakeCurrent());
  // Weights and cleared caches are there from here on, whatever stream brought them.
  WL_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "loading weights"));
  staging_.Finish();
  return tables_->Reserve(max_rows, page_count_);
}

absl::StatusOr<std::optional<DeviceMemory>> CudaBackend::Memory() const {
  WL_RETURN_IF_ERROR(device_.MakeCurrent());
  WL_ASSIGN_OR_RETURN(const DeviceMemory memory, MemoryOfCurrentDevice());
  return memory;
}

absl::Status CudaBackend::BeginStep(const StepArgs& args) {
  // The caller's thread may not be the one that created the back end.
  WL_RETURN_IF_ERROR(device_.MakeCurrent());
  WL_RETURN_IF_ERROR(step_.Begin(args));
  is_decode_ = args.kind == ::warpline::StepKind::kDecode;
  deferred_norm_.reset();
  deferred_sums_.reset();
  products_->ForgetInput();
  if (!rope_tables_.has_value() || step_.row_count() > rope_rows_) {
    rope_rows_ = MostRows(step_.row_count());
    rope_tables_.emplace(rope_rows_);
    ForgetRecords();
  }
  rope_tables_->BeginStep();
  const absl::Status begun = tables_->Begin(step_, is_decode_, stream_.get());
  if (!begun.ok()) {
    step_.End();
    return begun;
  }
  recorder_.BeginPlain();
  if (const int64_t footprint = Footprint(); footprint != footprint_) {
    ForgetRecords();  // Something lies elsewhere now.
    footprint_ = footprint;
  }
  if (!is_decode_ || !can_record_ || step_.row_count() == 0) return absl::OkStatus();
  tables_->RaiseContext(RaisedContext(tables_->view().max_context));
  recorder_.Begin({.rows = tables_->view().row_count,
                   .sequences = tables_->view().sequence_count,
                   .max_context = tables_->view().max_context,
                   .tables = tables_->view().token_ids});
  if (recorder_.is_recording()) products_->ForgetRows();
  return absl::OkStatus();
}

// Decode steps of up to so many positions are launched alike.
int32_t CudaBackend::RaisedContext(int32_t context) const {
  constexpr int32_t kSmallest = 512;
  int64_t raised = kSmallest;
  while (raised < context) raised *= 2;
  // No more than attention has room for.
  if (max_context_ > 0) raised = std::min(raised, std::max<int64_t>(max_context_, context));
  return static_cast<int32_t>(std::min<int64_t>(raised, std::numeric_limits<int32_t>::max()));
}

int64_t CudaBackend::Footprint() const {
  int64_t total = products_->footprint() + attention_->scratch_bytes();
  for (const Scratch* scratch : {&gate_, &up_, &logits_, &expert_ids_, &expert_weights_,
                                 &shared_gate_, &shared_, &packed_in_, &packed_out_}) {
    total += scratch->bytes();
  }
  for (const auto& [key, planned] : experts_) {
    if (planned.product != nullptr) total += planned.product->workspace_bytes();
  }
  return total;
}

absl::Status CudaBackend::EndStep() {
  WL_RETURN_IF_ERROR(CheckInStep());
  step_.End();
  WL_RETURN_IF_ERROR(RunDeferred());
  // A replay leaves the rows of its own step behind.
  if (recorder_.is_recording()) recorder_.set_note(products_->described_rows());
  if (recorder_.is_replay()) products_->NoteReplay(recorder_.note());
  products_->ForgetInput();
  return recorder_.End(stream_.get());
}

void CudaBackend::AbandonStep() {
  step_.End();
  deferred_norm_.reset();
  deferred_sums_.reset();
  products_->ForgetRows();
  products_->ForgetInput();
  recorder_.Abandon(stream_.get());
}

absl::Status CudaBackend::CheckInStep() const {
  return step_.active() ? absl::OkStatus() : absl::InvalidArgumentError("no step is open");
}

}  // namespace warpline::cuda
