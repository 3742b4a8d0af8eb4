// Products with dense matrices on one device: the expert kernels with a single expert.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "kernels/cuda/convert_rows.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/expert_kernels.h"
#include "kernels/cuda/raii.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/quant_decode_common.h"

namespace warpline::cuda {

// out (+)= scale * weight * in + bias; then times the sigmoid of the row's gate, then the soft cap.
struct ProductArgs {
  const CudaWeight* weight = nullptr;  // a plain matrix
  const float* bias = nullptr;         // [output_width] or null
  FloatRows in;
  FloatRows out;
  const float* row_gate = nullptr;  // [rows] or null
  float soft_cap = 0;
  bool accumulate = false;
  bool is_decode = false;  // the kind of step chooses the kernels
};

// Belongs to one device, which must be current. Used by one thread and one stream.
class MatrixProducts {
 public:
  static absl::StatusOr<MatrixProducts> Create(const ExpertKernels& kernels,
                                               const QuantGrids& grids);
  void Reserve(int64_t max_rows) { max_rows_ = max_rows; }
  // The next products cut their rows anew: what an earlier one left may have been replaced.
  void ForgetRows();
  // How many rows were described last, by SetRowSpace; -1: none since ForgetRows.
  int64_t described_rows() const { return described_rows_; }
  // Recorded products have been launched again, which described so many rows (-1: none).
  void NoteReplay(int64_t rows);
  // The next product converts its input anew. Products in a row share the input of the first.
  void ForgetInput() {
    converted_ = {};
    behind_.clear();
  }

  // Rows of a decode step as the products read them: padded to kPadK, each times a power of two
  // whose inverse is its scale (null: 1).
  struct HalfRows {
    uint16_t* halves = nullptr;
    float* row_scale = nullptr;
  };
  // Where the kernel that makes `rows` may put them too, so that products need not convert them.
  // They count as converted from then on.
  absl::StatusOr<HalfRows> MakeHalves(const FloatRows& rows, bool is_scaled);
  // Those of `rows`, made unless they lie there; they stay until the next product or MakeHalves.
  absl::StatusOr<HalfRows> HalvesOf(const FloatRows& rows, cudaStream_t stream);

  // Grows with the memory that the products work in, which recorded steps rely on.
  int64_t footprint() const;

  // Matrices of floats are multiplied in single precision, all others as halves with float sums.
  // Asynchronous on `stream`.
  absl::Status Run(const ProductArgs& args, cudaStream_t stream);
  // In single precision whatever the type: routers, whose scores decide.
  absl::Status RunExact(const ProductArgs& args, cudaStream_t stream);

 private:
  using ListKey = std::tuple<Op, QuantType, Policy, int32_t>;
  struct FilledLists {
    ItemLists lists;
    int64_t capacity = 0;  // rows
    int64_t rows = -1;     // that were cut last
  };

  explicit MatrixProducts(const ExpertKernels& kernels, const QuantGrids& grids)
      : kernels_(&kernels), grids_(grids) {}
  absl::StatusOr<const ItemLists*> Items(const KernelSet& set, Op op, const PackedExperts& weight,
                                         int64_t rows, cudaStream_t stream);
  // Into y, [rows][y_pitch].
  absl::Status Multiply(const ProductArgs& args, const KernelSet& set, const FloatRows& y,
                        bool accumulate, cudaStream_t stream);
  int64_t RoomFor(const FloatRows& out) const;  // values of y_
  // Whether a product may write `y` while those launched last still run.
  bool MayRunBeside(const FloatRows& y) const;
  bool WritesAlone(const ProductArgs& args, const KernelSet& set) const;
  bool IsConverted(const FloatRows& rows, bool is_decode) const;
  absl::StatusOr<HalfRows> Room(int64_t rows, int64_t k);
  absl::Status Convert(const ProductArgs& args, const ConvertArgs& convert, cudaStream_t stream);

  const ExpertKernels* kernels_;
  QuantGrids grids_;
  int64_t max_rows_ = 0;
  std::map<ListKey, FilledLists> lists_;
  int64_t described_rows_ = -1;  // what start_ and count_ say
  // What x_ was made of.
  struct Converted {
    FloatRows rows;
    bool is_decode = false;
    bool is_scaled = true;
  };
  Converted converted_;
  // What the products of a decode step write that were launched last, read x_ and may run beside
  // one another; empty where something else was launched since.
  std::vector<FloatRows> behind_;
  DeviceBuffer start_;
  DeviceBuffer count_;
  Scratch x_;
  Scratch row_scale_;
  Scratch y_;
};

}  // namespace warpline::cuda
