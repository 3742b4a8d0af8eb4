#include "kernels/quant_decode.h"

#include "base/status.h"
#include "kernels/quant_decode_blocks.h"
#include "kernels/quant_grids.h"

namespace warpline {
namespace {

template <typename Block>
void DecodeRow(const uint8_t* blocks, int64_t value_count, float* out) {
  WL_CHECK(value_count % Block::kValues == 0);
  const QuantGrids& grids = HostQuantGrids();
  for (int64_t i = 0; i < value_count; i += Block::kValues, blocks += Block::kBytes) {
    Block::Decode(blocks, grids, out + i);
  }
}

struct ScalarDecoder {
  template <QuantType kType>
  DequantizeFunction Visit() const {
    return &DecodeRow<typename BlockOf<kType>::Type>;
  }
  DequantizeFunction NotAWeight() const { return nullptr; }
};

}  // namespace

void DequantizeRow(QuantType type, const uint8_t* blocks, int64_t value_count, float* out) {
  const DequantizeFunction decode = VisitWeightType(type, ScalarDecoder());
  WL_CHECK(decode != nullptr);
  decode(blocks, value_count, out);
}

}  // namespace warpline
