// Mixture of experts: routing, the experts' gated products grouped by expert, and the sum for each
// row.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cpu/cpu_memory.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace warpline {

// MoeFfnArgs with the back end's own types; checked.
struct MoeJob {
  MatrixSlice router;
  MatrixSlice gate, up, down;  // `expert` is set by the layer
  int64_t n_ff = 0;            // width between gate and down
  int used_count = 0;
  bool renormalise = false;
  const CpuWeight* shared_gate_input = nullptr;  // null: no shared expert
  MatrixSlice shared_gate, shared_up, shared_down;
  int64_t row_count = 0;
  const float* x = nullptr;  // [row_count, n_embd]
  int64_t x_stride = 0;
  float* out = nullptr;  // [row_count, n_embd]
  int64_t out_stride = 0;
  bool accumulate = false;
};

// The indices of the `count` largest values in descending order; ties go to the lower index, NaN
// loses to any number.
void TopIndices(const float* values, int value_count, int count, int* indices);

class MoeLayer {
 public:
  MoeLayer(InstructionSet set, ThreadPool& pool, MatrixProduct& product);
  absl::Status Run(const MoeJob& job);

 private:
  absl::Status RunRows(const MoeJob& job);
  void Route(const MoeJob& job);
  void GroupByExpert(const MoeJob& job);
  void RunExperts(const MoeJob& job);
  void RunShared(const MoeJob& job);
  void Combine(const MoeJob& job);
  absl::Status ReserveScratch(const MoeJob& job);

  const RowKernels& row_;
  ThreadPool& pool_;
  MatrixProduct& product_;
  std::vector<MatrixJob> jobs_;
  // A pair is a row and one of its experts.
  std::vector<int> chosen_;    // [row_count, used_count] experts, descending probability
  std::vector<float> weight_;  // [row_count, used_count]
  std::vector<int64_t>
      place_;  // [row_count, used_count] where the pair stands when sorted by expert
  std::vector<int64_t> row_of_;      // row of each sorted pair
  std::vector<int64_t> first_pair_;  // [expert_count + 1] first sorted pair of each expert
  CpuScratch probability_, gathered_, hidden_, result_, shared_hidden_, shared_result_,
      shared_weight_, sum_;
  float *probability_data_ = nullptr, *gathered_data_ = nullptr, *hidden_data_ = nullptr,
        *result_data_ = nullptr;
  float *shared_hidden_data_ = nullptr, *shared_result_data_ = nullptr,
        *shared_weight_data_ = nullptr;
  float* sum_data_ = nullptr;
};

}  // namespace warpline
