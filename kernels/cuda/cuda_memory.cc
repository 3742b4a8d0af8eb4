#include "kernels/cuda/cuda_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/decode_rows.h"

namespace warpline::cuda {

absl::Status Scratch::Reserve(int64_t bytes) {
  if (bytes <= buffer_.bytes()) return absl::OkStatus();
  buffer_ = DeviceBuffer();  // Before the larger one, so that both need not fit.
  WL_ASSIGN_OR_RETURN(buffer_, DeviceBuffer::Create(bytes));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CudaSlotState>> CudaSlotState::Create(const SlotStateArgs& args,
                                                                     cudaStream_t stream) {
  const int64_t bytes = args.slot_count * args.value_count * static_cast<int64_t>(sizeof(float));
  WL_ASSIGN_OR_RETURN(DeviceBuffer memory, DeviceBuffer::Create(bytes));
  std::unique_ptr<CudaSlotState> state(new CudaSlotState(args, std::move(memory), stream));
  for (int slot = 0; slot < args.slot_count; ++slot) WL_RETURN_IF_ERROR(state->Reset(slot));
  return state;
}

absl::Status CudaSlotState::Reset(int kv_slot) {
  if (kv_slot < 0 || kv_slot >= args_.slot_count) {
    return absl::InvalidArgumentError(absl::StrCat("slot ", kv_slot, " of ", args_.slot_count));
  }
  const size_t bytes = static_cast<size_t>(args_.value_count) * sizeof(float);
  if (bytes == 0) return absl::OkStatus();
  return CudaStatus(cudaMemsetAsync(values() + kv_slot * args_.value_count, 0, bytes, stream_),
                    "clearing the state of a slot");
}

absl::StatusOr<std::unique_ptr<CudaWeight>> CudaWeight::Create(const WeightArgs& args,
                                                               WeightStaging& staging,
                                                               cudaStream_t stream) {
  std::unique_ptr<CudaWeight> weight(new CudaWeight(staging));
  weight->type_ = args.type;
  weight->input_width_ = args.input_width;
  weight->output_width_ = args.output_width;
  weight->expert_count_ = args.expert_count;
  weight->scales_.assign(args.scales.begin(), args.scales.end());
  if (args.expert_count > 1 && weight->scales_.size() == 1) {
    weight->scales_.resize(static_cast<size_t>(args.expert_count), args.scales[0]);
  }
  if (weight->has_expert_scales()) {
    const size_t bytes = weight->scales_.size() * sizeof(float);
    WL_ASSIGN_OR_RETURN(weight->device_scales_, DeviceBuffer::Create(static_cast<int64_t>(bytes)));
    WL_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(weight->device_scales_.as(), weight->scales_.data(), bytes,
                                   cudaMemcpyHostToDevice, stream),
                   "copying the scales of a weight to the device"));
  }
  WL_ASSIGN_OR_RETURN(weight->blocks_, staging.Take(static_cast<int64_t>(args.data.size())));
  WL_RETURN_IF_ERROR(staging.Copy(args.data, weight->blocks_.as(), stream));
  return weight;
}

absl::StatusOr<const uint8_t*> CudaWeight::BlocksOnce() const {
  if (blocks_.bytes() > 0) return blocks_.as();
  return absl::InternalError("the blocks of a weight have been given back");
}

absl::StatusOr<const uint8_t*> CudaWeight::Blocks() const {
  keep_blocks_ = true;
  return BlocksOnce();
}

void CudaWeight::Release() const {
  if (!keep_blocks_) staging_.Give(std::exchange(blocks_, DeviceBuffer()));
}

absl::StatusOr<const float*> CudaWeight::Floats(const QuantGrids& grids,
                                                cudaStream_t stream) const {
  // The file's blocks are floats already.
  if (type_ == QuantType::kF32) {
    WL_ASSIGN_OR_RETURN(const uint8_t* blocks, Blocks());
    return reinterpret_cast<const float*>(blocks);
  }
  if (floats_.bytes() > 0) return floats_.as<float>();
  WL_ASSIGN_OR_RETURN(const uint8_t* blocks, Blocks());
  const int64_t rows = output_width_ * expert_count_;
  WL_ASSIGN_OR_RETURN(
      floats_, DeviceBuffer::Create(rows * input_width_ * static_cast<int64_t>(sizeof(float))));
  WL_RETURN_IF_ERROR(DecodeRows({.type = type_,
                                 .blocks = blocks,
                                 .row_count = rows,
                                 .width = input_width_,
                                 .grids = grids,
                                 .out = floats_.as<float>(),
                                 .out_stride = input_width_},
                                stream));
  return floats_.as<float>();
}

absl::StatusOr<const PackedExperts*> CudaWeight::Packed(const QuantGrids& grids,
                                                        cudaStream_t stream) const {
  if (packed_.has_value()) return &*packed_;
  WL_ASSIGN_OR_RETURN(const uint8_t* blocks, BlocksOnce());
  WL_ASSIGN_OR_RETURN(packed_, PackExperts({.type = type_,
                                            .experts = static_cast<int32_t>(expert_count_),
                                            .rows = static_cast<int32_t>(output_width_),
                                            .k = static_cast<int32_t>(input_width_),
                                            .blocks = blocks,
                                            .expert_bytes = output_width_ * row_bytes(),
                                            .device_grids = &grids},
                                           stream));
  Release();
  return &*packed_;
}

}  // namespace warpline::cuda
