#include "kernels/cuda/repack.h"

#include <algorithm>
#include <cmath>

#include "kernels/quant_grids.h"

namespace warpline::cuda {
namespace {

struct ShapeVisitor {
  template <QuantType kType>
  PackedShape Visit() const {
    return WeightFormat<kType>::kShape;
  }
  PackedShape NotAWeight() const { return {}; }
};

struct TableBytesVisitor {
  template <QuantType kType>
  int Visit() const {
    return WeightFormat<kType>::kTableBytes;
  }
  int NotAWeight() const { return 0; }
};

struct MakeTableVisitor {
  uint8_t* table;
  template <QuantType kType>
  void Visit() const {
    WeightFormat<kType>::MakeTable(HostQuantGrids(), table);
  }
  void NotAWeight() const {}
};

struct RepackVisitor {
  const RepackArgs& args;
  template <QuantType kType>
  void Visit() const {
    const int64_t pieces = PieceCount(WeightFormat<kType>::kShape, args);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      for (int lane = 0; lane < 32; ++lane) RepackLane<kType>(args, piece, lane);
    }
  }
  void NotAWeight() const {}
};

struct MaxAbsVisitor {
  const uint8_t* blocks;
  int64_t value_count;
  template <QuantType kType>
  float Visit() const {
    using Block = typename BlockOf<kType>::Type;
    float max_abs = 0;
    float values[Block::kValues];
    for (int64_t i = 0; i < value_count / Block::kValues; ++i) {
      Block::Decode(blocks + i * Block::kBytes, HostQuantGrids(), values);
      for (const float value : values) {
        if (std::isfinite(value)) max_abs = std::max(max_abs, std::fabs(value));
      }
    }
    return max_abs;
  }
  float NotAWeight() const { return 0; }
};

}  // namespace

PackedShape PackedShapeOf(QuantType type) { return VisitWeightType(type, ShapeVisitor{}); }

int TableBytesOf(QuantType type) { return VisitWeightType(type, TableBytesVisitor{}); }

void MakeTableOf(QuantType type, uint8_t* table) { VisitWeightType(type, MakeTableVisitor{table}); }

void RepackOnHost(QuantType type, const RepackArgs& args) {
  VisitWeightType(type, RepackVisitor{args});
}

float MaxAbsOnHost(QuantType type, const uint8_t* blocks, int64_t value_count) {
  return VisitWeightType(type, MaxAbsVisitor{blocks, value_count});
}

}  // namespace warpline::cuda
