#include "kernels/cpu/moe.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/status.h"

namespace warpline {
namespace {

constexpr int64_t kMaxRows = 512;              // rows that share one pass; bounds the scratch
constexpr float kLowestSum = 6.103515625e-5f;  // 2^-14

}  // namespace

void TopIndices(const float* values, int value_count, int count, int* indices) {
  const auto better = [values](int a, int b) {
    const bool a_nan = std::isnan(values[a]), b_nan = std::isnan(values[b]);
    if (a_nan || b_nan) return a_nan == b_nan ? a < b : b_nan;
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  };
  int kept = 0;
  for (int i = 0; i < value_count; ++i) {
    if (kept == count && !better(i, indices[kept - 1])) continue;
    int place = kept < count ? kept++ : kept - 1;
    for (; place > 0 && better(i, indices[place - 1]); --place) indices[place] = indices[place - 1];
    indices[place] = i;
  }
}

MoeLayer::MoeLayer(InstructionSet set, ThreadPool& pool, MatrixProduct& product)
    : row_(GetRowKernels(set)), pool_(pool), product_(product) {}

absl::Status MoeLayer::Run(const MoeJob& job) {
  for (int64_t row = 0; row < job.row_count; row += kMaxRows) {
    MoeJob part = job;
    part.row_count = std::min(kMaxRows, job.row_count - row);
    part.x += row * job.x_stride;
    part.out += row * job.out_stride;
    WL_RETURN_IF_ERROR(RunRows(part));
  }
  return absl::OkStatus();
}

absl::Status MoeLayer::ReserveScratch(const MoeJob& job) {
  const int64_t rows = job.row_count;
  const int64_t pairs = rows * job.used_count;
  const int64_t n_embd = job.router.weight->input_width();
  const int64_t experts = job.router.weight->output_width();
  WL_ASSIGN_OR_RETURN(probability_data_, probability_.Floats(rows * experts));
  WL_ASSIGN_OR_RETURN(gathered_data_, gathered_.Floats(pairs * n_embd));
  WL_ASSIGN_OR_RETURN(hidden_data_, hidden_.Floats(pairs * job.n_ff));
  WL_ASSIGN_OR_RETURN(result_data_, result_.Floats(pairs * n_embd));
  WL_ASSIGN_OR_RETURN(sum_data_, sum_.Floats(rows * n_embd));
  if (job.shared_gate_input != nullptr) {
    const int64_t shared_ff = job.shared_gate.weight->output_width();
    WL_ASSIGN_OR_RETURN(shared_hidden_data_, shared_hidden_.Floats(rows * shared_ff));
    WL_ASSIGN_OR_RETURN(shared_result_data_, shared_result_.Floats(rows * n_embd));
    WL_ASSIGN_OR_RETURN(shared_weight_data_, shared_weight_.Floats(rows));
  }
  chosen_.resize(pairs);
  weight_.resize(pairs);
  place_.resize(pairs);
  row_of_.resize(pairs);
  first_pair_.assign(experts + 1, 0);
  return absl::OkStatus();
}

absl::Status MoeLayer::RunRows(const MoeJob& job) {
  WL_RETURN_IF_ERROR(ReserveScratch(job));
  Route(job);
  GroupByExpert(job);
  RunExperts(job);
  if (job.shared_gate_input != nullptr) RunShared(job);
  Combine(job);
  return absl::OkStatus();
}

void MoeLayer::Route(const MoeJob& job) {
  const int experts = static_cast<int>(job.router.weight->output_width());
  product_.Run({MatrixJob{.matrix = job.router,
                          .x = job.x,
                          .x_stride = job.x_stride,
                          .row_count = job.row_count,
                          .column_count = experts,
                          .out = probability_data_,
                          .out_stride = experts}});
  pool_.Run(job.row_count, [&](int64_t row, int) {
    float* probability = probability_data_ + row * experts;
    int* chosen = chosen_.data() + row * job.used_count;
    float* weight = weight_.data() + row * job.used_count;
    row_.softmax(experts, probability);
    TopIndices(probability, experts, job.used_count, chosen);
    float sum = 0;
    for (int i = 0; i < job.used_count; ++i) {
      weight[i] = probability[chosen[i]];
      sum += weight[i];
    }
    if (!job.renormalise) return;
    const float divisor = sum < kLowestSum ? kLowestSum : sum;  // NaN stays NaN
    for (int i = 0; i < job.used_count; ++i) weight[i] /= divisor;
  });
}

void MoeLayer::GroupByExpert(const MoeJob& job) {
  const int64_t pairs = static_cast<int64_t>(chosen_.size());
  for (const int expert : chosen_) ++first_pair_[expert + 1];
  for (size_t e = 1; e < first_pair_.size(); ++e) first_pair_[e] += first_pair_[e - 1];
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t place = first_pair_[chosen_[pair]]++;  // moves each start to the next expert's
    place_[pair] = place;
    row_of_[place] = pair / job.used_count;
  }
  for (size_t e = first_pair_.size() - 1; e > 0; --e) first_pair_[e] = first_pair_[e - 1];
  first_pair_[0] = 0;
  const int64_t n_embd = job.router.weight->input_width();
  pool_.Run(pairs, [&](int64_t place, int) {
    std::memcpy(gathered_data_ + place * n_embd, job.x + row_of_[place] * job.x_stride,
                n_embd * sizeof(float));
  });
}

void MoeLayer::RunExperts(const MoeJob& job) {
  const int64_t n_embd = job.router.weight->input_width();
  const int64_t experts = static_cast<int64_t>(first_pair_.size()) - 1;
  jobs_.clear();
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t first = first_pair_[e], count = first_pair_[e + 1] - first;
    if (count == 0) continue;
    MatrixJob gated{.matrix = job.gate,
                    .up = job.up,
                    .activation = Activation::kSilu,
                    .x = gathered_data_ + first * n_embd,
                    .x_stride = n_embd,
                    .row_count = count,
                    .column_count = job.n_ff,
                    .out = hidden_data_ + first * job.n_ff,
                    .out_stride = job.n_ff};
    gated.matrix.expert = gated.up.expert = e;
    jobs_.push_back(gated);
  }
  product_.Run(jobs_);
  for (MatrixJob& down : jobs_) {
    const int64_t e = down.matrix.expert, first = first_pair_[e];
    down = MatrixJob{.matrix = job.down,
                     .x = hidden_data_ + first * job.n_ff,
                     .x_stride = job.n_ff,
                     .row_count = first_pair_[e + 1] - first,
                     .column_count = n_embd,
                     .out = result_data_ + first * n_embd,
                     .out_stride = n_embd};
    down.matrix.expert = e;
  }
  product_.Run(jobs_);
}

void MoeLayer::RunShared(const MoeJob& job) {
  const int64_t n_embd = job.router.weight->input_width();
  const int64_t n_ff = job.shared_gate.weight->output_width();
  const MatrixJob weights{.matrix = {.weight = job.shared_gate_input},
                          .x = job.x,
                          .x_stride = job.x_stride,
                          .row_count = job.row_count,
                          .column_count = 1,
                          .out = shared_weight_data_,
                          .out_stride = 1};
  const MatrixJob gated{.matrix = job.shared_gate,
                        .up = job.shared_up,
                        .activation = Activation::kSilu,
                        .x = job.x,
                        .x_stride = job.x_stride,
                        .row_count = job.row_count,
                        .column_count = n_ff,
                        .out = shared_hidden_data_,
                        .out_stride = n_ff};
  product_.Run({weights, gated});
  product_.Run({MatrixJob{.matrix = job.shared_down,
                          .x = shared_hidden_data_,
                          .x_stride = n_ff,
                          .row_count = job.row_count,
                          .column_count = n_embd,
                          .out = shared_result_data_,
                          .out_stride = n_embd}});
}

void MoeLayer::Combine(const MoeJob& job) {
  const int64_t n_embd = job.router.weight->input_width();
  pool_.Run(job.row_count, [&](int64_t row, int) {
    float* out = job.out + row * job.out_stride;
    float* sum = job.accumulate ? sum_data_ + row * n_embd : out;
    for (int i = 0; i < job.used_count; ++i) {
      const int64_t pair = row * job.used_count + i;
      row_.add_scaled(result_data_ + place_[pair] * n_embd, weight_[pair], i == 0, n_embd, sum);
    }
    if (job.shared_gate_input != nullptr) {
      const float weight = row_.sigmoid(shared_weight_data_[row]);
      row_.add_scaled(shared_result_data_ + row * n_embd, weight, false, n_embd, sum);
    }
    if (job.accumulate) row_.add(sum, n_embd, out);
  });
}

}  // namespace warpline
