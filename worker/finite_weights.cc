#include "worker/finite_weights.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "kernels/quant_decode.h"
#include "kernels/non_finite.h"

namespace warpline {
namespace {

constexpr int64_t kPieceValues = 1 << 14;  // A multiple of every block.

// The first block of `tensor` that is no number, -1 when there is none.
int64_t FirstBadBlock(const GgufFile& file, const GgufTensor& tensor, InstructionSet set,
                      std::vector<float>& values) {
  const QuantTypeInfo& type = InfoOf(tensor.type);
  const DequantizeFunction decode = FastDequantizer(tensor.type, set);
  const absl::Span<const uint8_t> bytes = file.Data(tensor);
  const int64_t block_count = static_cast<int64_t>(bytes.size()) / type.block_bytes;
  const int64_t piece_blocks = kPieceValues / type.block_values;
  for (int64_t block = 0; block < block_count; block += piece_blocks) {
    const int64_t count = std::min(piece_blocks, block_count - block);
    decode(bytes.data() + block * type.block_bytes, count * type.block_values, values.data());
    for (int64_t index = 0; index < count; ++index) {
      const absl::Span<const float> decoded(values.data() + index * type.block_values,
                                            type.block_values);
      if (HasNonFinite(decoded)) return block + index;
    }
  }
  return -1;
}

}  // namespace

absl::Status CheckFiniteWeights(const GgufFile& file) {
  WL_ASSIGN_OR_RETURN(const InstructionSet set, DetectInstructionSet(""));
  std::vector<float> values(kPieceValues);
  for (const GgufTensor& tensor : file.tensors()) {
    if (!InfoOf(tensor.type).is_weight) continue;
    const int64_t bad = FirstBadBlock(file, tensor, set, values);
    file.Release(tensor);
    if (bad < 0) continue;
    return absl::DataLossError(absl::StrCat(EscapeForLog(file.ShardPath(tensor.shard)), ": tensor ",
                                            tensor.name, ": block ", bad, " of type ",
                                            InfoOf(tensor.type).name, " at offset ",
                                            tensor.offset + bad * InfoOf(tensor.type).block_bytes,
                                            " holds a scale or value that is NaN or infinite"));
  }
  return absl::OkStatus();
}

}  // namespace warpline
