#include "kernels/cuda/packed_experts.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/repack.h"

namespace warpline::cuda {
namespace {

constexpr int64_t kSlabBytes = int64_t{256} << 20;  // raw blocks on the device at a time
constexpr int kGateUpPad = 128;                     // n_ff is padded to a multiple of this

absl::Status CheckShape(const RawExperts& raw) {
  const QuantTypeInfo& info = InfoOf(raw.type);
  if (!info.is_weight || raw.experts < 1 || raw.rows < 1 || raw.k < 1 ||
      raw.k % info.block_values != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot pack ", raw.experts, " experts of ",
                                                   raw.rows, " rows of ", raw.k, " values ",
                                                   info.name));
  }
  return absl::OkStatus();
}

float MaxAbsOfHost(const RawExperts& raw) {
  float max_abs = 0;
  for (int e = 0; e < raw.experts; ++e) {
    max_abs = std::max(max_abs, MaxAbsOnHost(raw.type, raw.blocks + e * raw.expert_bytes,
                                             int64_t{raw.rows} * raw.k));
  }
  return max_abs;
}

absl::StatusOr<int> ShiftOf(const RawExperts* const (&parts)[2], cudaStream_t stream) {
  if (!HasWeightShift(parts[0]->type)) return 0;
  float max_abs = 0;
  for (const RawExperts* const part : parts) {
    if (part == nullptr) continue;
    float of_part = 0;
    if (part->device_grids != nullptr) {
      WL_ASSIGN_OR_RETURN(of_part, MaxAbsOnDevice({.type = part->type,
                                                   .blocks = part->blocks,
                                                   .experts = part->experts,
                                                   .expert_bytes = part->expert_bytes,
                                                   .expert_values = int64_t{part->rows} * part->k,
                                                   .grids = *part->device_grids},
                                                  stream));
    } else {
      of_part = MaxAbsOfHost(*part);
    }
    max_abs = std::max(max_abs, of_part);
  }
  return WeightShift(max_abs);
}

// Copies the experts of a slab to the device and packs them, one slab after the other.
absl::Status PackSlabs(const RawExperts* const (&parts)[2], int shift, PackedExperts& packed,
                       cudaStream_t stream) {
  const RawExperts& first = *parts[0];
  const int64_t part_bytes = RowBytes(first.type, int64_t{first.rows} * first.k);
  const int part_count = parts[1] == nullptr ? 1 : 2;
  const int32_t slab_experts = static_cast<int32_t>(
      std::clamp<int64_t>(kSlabBytes / (part_bytes * part_count), 1, first.experts));
  WL_ASSIGN_OR_RETURN(const DeviceBuffer slab,
                      DeviceBuffer::Create(part_bytes * part_count * slab_experts));
  for (int32_t begin = 0; begin < first.experts; begin += slab_experts) {
    const int32_t count = std::min(slab_experts, first.experts - begin);
    RepackArgs args = {.raw_expert_bytes = part_bytes,
                       .experts = count,
                       .rows = first.rows,
                       .k = first.k,
                       .shift = shift,
                       .row_blocks = packed.row_blocks,
                       .packed = packed.data.as() + begin * packed.expert_bytes};
    for (int p = 0; p < part_count; ++p) {
      uint8_t* const to = slab.as() + p * part_bytes * slab_experts;
      args.raw[p] = to;
      WL_RETURN_IF_ERROR(
          CudaStatus(cudaMemcpy2DAsync(to, static_cast<size_t>(part_bytes),
                                       parts[p]->blocks + begin * parts[p]->expert_bytes,
                                       static_cast<size_t>(parts[p]->expert_bytes),
                                       static_cast<size_t>(part_bytes), static_cast<size_t>(count),
                                       cudaMemcpyHostToDevice, stream),
                     "copying raw blocks to the device"));
    }
    WL_RETURN_IF_ERROR(LaunchRepack(first.type, args, stream));
    WL_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), "packing weights"));
  }
  return absl::OkStatus();
}

// Packs blocks that are on the device already.
absl::Status PackInPlace(const RawExperts* const (&parts)[2], int shift, PackedExperts& packed,
                         cudaStream_t stream) {
  const RawExperts& first = *parts[0];
  return LaunchRepack(first.type,
                      {.raw = {first.blocks, parts[1] == nullptr ? nullptr : parts[1]->blocks},
                       .raw_expert_bytes = first.expert_bytes,
                       .experts = first.experts,
                       .rows = first.rows,
                       .k = first.k,
                       .shift = shift,
                       .row_blocks = packed.row_blocks,
                       .packed = packed.data.as()},
                      stream);
}

absl::StatusOr<PackedExperts> Pack(const RawExperts* const (&parts)[2], cudaStream_t stream) {
  const RawExperts& first = *parts[0];
  WL_RETURN_IF_ERROR(CheckShape(first));
  const bool is_gate_up = parts[1] != nullptr;
  WL_ASSIGN_OR_RETURN(const int shift, ShiftOf(parts, stream));
  PackedExperts packed;
  packed.type = first.type;
  packed.is_gate_up = is_gate_up;
  packed.experts = first.experts;
  packed.rows = first.rows;
  packed.out_columns =
      is_gate_up ? static_cast<int32_t>(RoundUp(first.rows, kGateUpPad)) : first.rows;
  packed.k = static_cast<int32_t>(RoundUp(first.k, kPadK));
  packed.row_blocks = is_gate_up ? packed.out_columns / 8
                                 : static_cast<int32_t>(RoundUp(first.rows, kRowBlock) / kRowBlock);
  packed.expert_bytes = packed.row_blocks * RowBlockBytes(PackedShapeOf(first.type), first.k);
  packed.weight_scale = std::ldexp(1.0f, -shift);
  WL_ASSIGN_OR_RETURN(packed.data, DeviceBuffer::Create(packed.expert_bytes * packed.experts));
  WL_RETURN_IF_ERROR(first.device_grids != nullptr ? PackInPlace(parts, shift, packed, stream)
                                                   : PackSlabs(parts, shift, packed, stream));
  return packed;
}

}  // namespace

absl::StatusOr<PackedExperts> PackExperts(const RawExperts& raw, cudaStream_t stream) {
  return Pack({&raw, nullptr}, stream);
}

absl::StatusOr<PackedExperts> PackGateUp(const RawExperts& gate, const RawExperts& up,
                                         cudaStream_t stream) {
  if (gate.type != up.type || gate.rows != up.rows || gate.k != up.k ||
      gate.experts != up.experts ||
      (gate.device_grids == nullptr) != (up.device_grids == nullptr) ||
      (gate.device_grids != nullptr && gate.expert_bytes != up.expert_bytes)) {
    return absl::InvalidArgumentError("gate and up are not of one type and shape");
  }
  return Pack({&gate, &up}, stream);
}

}  // namespace warpline::cuda
