// Cases of Gated DeltaNet, wide residuals and the n-gram table: one sequence, whose state goes from
// run to run.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/status.h"
#include "kernels/cpu/op_cases.h"

namespace warpline {
namespace {

using Values = std::vector<double>;
constexpr float kEps = 1e-5f;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Silu(double x) { return x * Sigmoid(x); }

// Rows [first, first + count) of packed f32 rows in a buffer.
Tensor RowsOf(const std::unique_ptr<Buffer>& buffer, int64_t width, int64_t first, int64_t count) {
  return {.buffer = buffer.get(),
          .row_count = count,
          .width = width,
          .stride = width,
          .first = first * width};
}

// x / sqrt(mean of squares + eps) gamma
void NormInPlace(double* x, const float* gamma, int64_t width) {
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += x[i] * x[i];
  const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + kEps);
  for (int64_t i = 0; i < width; ++i) x[i] *= factor * gamma[i];
}

// silu of the causal convolution of `x` [rows, width] with `kernel` [taps, width].
Values Convolved(const Values& x, const std::vector<float>& kernel, int64_t width, int taps,
                 int dilation) {
  Values out(x.size());
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
    double sum = 0;
    for (int tap = 0; tap < taps; ++tap) {
      const int64_t from = i - int64_t{taps - 1 - tap} * dilation * width;
      if (from >= 0) sum += kernel[tap * width + i % width] * x[from];
    }
    out[i] = Silu(sum);
  }
  return out;
}

// What all fixtures here share: inputs by name of their seed, a step around each run, the output.
class SequenceFixture : public OpFixture {
 public:
  SequenceFixture(Backend& backend, const OpCase& op_case) : backend_(backend), case_(op_case) {}

  absl::Status Run(int64_t first, int64_t count) override {
    const std::vector<int32_t> tokens(count);
    const std::vector<int32_t> pages(case_.rows / kPageTokens + 1);
    const std::vector<StepSequence> sequences = {{.kv_slot = 1,
                                                  .first_position = first,
                                                  .row_count = static_cast<int>(count),
                                                  .pages = pages}};
    WL_RETURN_IF_ERROR(backend_.BeginStep({.token_ids = tokens, .sequences = sequences}));
    const absl::Status ran = RunRows(first, count);
    WL_RETURN_IF_ERROR(backend_.EndStep());
    return ran;
  }
  std::vector<float> Read() override {
    std::vector<float> values(case_.rows * out_width_);
    const absl::Span<uint8_t> bytes(reinterpret_cast<uint8_t*>(values.data()),
                                    values.size() * sizeof(float));
    WL_CHECK(backend_.Download(*out_, 0, bytes).ok());
    return values;
  }
  double WeightBytes() const override { return 0; }

  virtual absl::Status SetUp(int64_t poisoned_row) = 0;

 protected:
  virtual absl::Status RunRows(int64_t first, int64_t count) = 0;

  std::vector<float> RowsWith(uint32_t seed, int64_t width, int64_t poisoned_row) const {
    std::vector<float> values = Random(seed, case_.rows * width, 1);
    if (poisoned_row >= 0) {
      std::fill_n(values.begin() + poisoned_row * width, width,
                  std::numeric_limits<float>::quiet_NaN());
    }
    return values;
  }
  static std::vector<float> Random(uint32_t seed, int64_t count, float deviation) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
  }
  absl::StatusOr<std::unique_ptr<Buffer>> Upload(const std::vector<float>& values) {
    WL_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                        backend_.Allocate(static_cast<int64_t>(values.size() * sizeof(float))));
    WL_RETURN_IF_ERROR(Refresh(values, 0, static_cast<int64_t>(values.size()), *buffer));
    return buffer;
  }
  // Writes values [first, first + count) again: ops change inputs in place.
  absl::Status Refresh(const std::vector<float>& values, int64_t first, int64_t count,
                       Buffer& buffer) {
    const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(values.data() + first),
                                          static_cast<size_t>(count) * sizeof(float));
    return backend_.Upload(bytes, buffer, first * static_cast<int64_t>(sizeof(float)));
  }
  absl::StatusOr<std::unique_ptr<Weight>> Load(const std::vector<float>& values, int64_t k,
                                               int64_t n) {
    const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(values.data()),
                                          values.size() * sizeof(float));
    return backend_.LoadWeight({.input_width = k, .output_width = n, .data = bytes});
  }
  static Values Times(const std::vector<float>& matrix, const double* x, int64_t k, int64_t n) {
    Values y(n);
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t i = 0; i < k; ++i) y[c] += matrix[c * k + i] * x[i];
    }
    return y;
  }
  absl::Status MakeState(int64_t value_count, std::unique_ptr<SlotState>& state) {
    WL_ASSIGN_OR_RETURN(state,
                        backend_.CreateSlotState({.slot_count = 2, .value_count = value_count}));
    return absl::OkStatus();
  }

  Backend& backend_;
  const OpCase case_;
  int64_t out_width_ = 0;
  std::unique_ptr<Buffer> out_;
};

class DeltaFixture final : public SequenceFixture {
 public:
  DeltaFixture(Backend& backend, const OpCase& op_case)
      : SequenceFixture(backend, op_case),
        dim_(op_case.head_dim),
        heads_(op_case.n_head),
        key_heads_(op_case.n_head_kv),
        width_((2 * key_heads_ + heads_) * dim_) {
    out_width_ = heads_ * dim_;
  }

  absl::Status SetUp(int64_t poisoned_row) override {
    qkv_ = RowsWith(1, width_, poisoned_row);
    beta_ = RowsWith(2, heads_, poisoned_row);
    alpha_ = RowsWith(3, heads_, poisoned_row);
    z_ = RowsWith(4, out_width_, poisoned_row);
    kernel_ = Random(5, case_.taps * width_, 0.5f);
    a_ = Random(6, heads_, 1);
    for (float& value : a_) value = -std::fabs(value);
    dt_ = Random(7, heads_, 1);
    dt_[0] = 25;  // beyond the bend of softplus
    gamma_ = Random(8, dim_, 1);
    WL_ASSIGN_OR_RETURN(qkv_buffer_, Upload(qkv_));
    WL_ASSIGN_OR_RETURN(made_buffer_, Upload(qkv_));
    WL_ASSIGN_OR_RETURN(beta_buffer_, Upload(beta_));
    WL_ASSIGN_OR_RETURN(alpha_buffer_, Upload(alpha_));
    WL_ASSIGN_OR_RETURN(z_buffer_, Upload(z_));
    WL_ASSIGN_OR_RETURN(kernel_buffer_, Upload(kernel_));
    WL_ASSIGN_OR_RETURN(a_buffer_, Upload(a_));
    WL_ASSIGN_OR_RETURN(dt_buffer_, Upload(dt_));
    WL_ASSIGN_OR_RETURN(gamma_buffer_, Upload(gamma_));
    WL_ASSIGN_OR_RETURN(out_, backend_.Allocate(case_.rows * out_width_ * 4));
    WL_RETURN_IF_ERROR(MakeState((case_.taps - 1) * width_, columns_));
    return MakeState(heads_ * dim_ * dim_, memory_);
  }

  Values Expected() override {
    const Values conv = Convolved(Values(qkv_.begin(), qkv_.end()), kernel_, width_, case_.taps, 1);
    Values memory(heads_ * dim_ * dim_);
    Values out;
    for (int64_t t = 0; t < case_.rows; ++t) {
      for (int64_t h = 0; h < heads_; ++h) {
        const Values o =
            ExpectedHead(conv.data() + t * width_, t, h, memory.data() + h * dim_ * dim_);
        out.insert(out.end(), o.begin(), o.end());
      }
    }
    return out;
  }
  double Flops() const override { return 8.0 * case_.rows * heads_ * dim_ * dim_; }

 protected:
  absl::Status RunRows(int64_t first, int64_t count) override {
    if (first == 0) {
      WL_RETURN_IF_ERROR(columns_->Reset(1));
      WL_RETURN_IF_ERROR(memory_->Reset(1));
    }
    WL_RETURN_IF_ERROR(Refresh(beta_, first * heads_, count * heads_, *beta_buffer_));
    WL_RETURN_IF_ERROR(Refresh(alpha_, first * heads_, count * heads_, *alpha_buffer_));
    const Tensor made = RowsOf(made_buffer_, width_, first, count);
    const Tensor beta = RowsOf(beta_buffer_, heads_, first, count);
    const Tensor alpha = RowsOf(alpha_buffer_, heads_, first, count);
    WL_RETURN_IF_ERROR(backend_.DeltaPrep({.qkv = RowsOf(qkv_buffer_, width_, first, count),
                                           .out = made,
                                           .beta = beta,
                                           .alpha = alpha,
                                           .n_head_key = case_.n_head_kv,
                                           .n_head_value = case_.n_head,
                                           .head_dim = case_.head_dim,
                                           .conv_kernel = case_.taps,
                                           .kernel = kernel_buffer_.get(),
                                           .a = a_buffer_.get(),
                                           .dt = dt_buffer_.get(),
                                           .eps = kEps,
                                           .columns = columns_.get()}));
    return backend_.DeltaRun({.qkv = made,
                              .beta = beta,
                              .decay = alpha,
                              .z = RowsOf(z_buffer_, out_width_, first, count),
                              .out = RowsOf(out_, out_width_, first, count),
                              .n_head_key = case_.n_head_kv,
                              .n_head_value = case_.n_head,
                              .head_dim = case_.head_dim,
                              .grouped_heads = case_.grouped,
                              .sigmoid_gate = case_.sigmoid_gate,
                              .gamma = gamma_buffer_.get(),
                              .eps = kEps,
                              .memory = memory_.get()});
  }

 private:
  // One token of one head; `memory` [key dim, value dim].
  Values ExpectedHead(const double* conv, int64_t t, int64_t h, double* memory) const {
    const int64_t key_head = case_.grouped ? h / (heads_ / key_heads_) : h % key_heads_;
    const auto unit = [&](const double* x, double factor) {
      Values y(x, x + dim_);
      double squares = 0;
      for (const double v : y) squares += v * v;
      for (double& v : y) v *= factor / std::sqrt(squares + kEps);
      return y;
    };
    const Values q = unit(conv + key_head * dim_, 1 / std::sqrt(static_cast<double>(dim_)));
    const Values k = unit(conv + (key_heads_ + key_head) * dim_, 1);
    const double* const v = conv + (2 * key_heads_ + h) * dim_;
    const double x = alpha_[t * heads_ + h] + dt_[h];
    const double decay = std::exp(a_[h] * (x > 20 ? x : std::log1p(std::exp(x))));
    const double beta = Sigmoid(beta_[t * heads_ + h]);
    Values o(dim_);
    for (int64_t j = 0; j < dim_; ++j) {
      double predicted = 0;
      for (int64_t i = 0; i < dim_; ++i) predicted += memory[i * dim_ + j] * decay * k[i];
      const double change = beta * (v[j] - predicted);
      for (int64_t i = 0; i < dim_; ++i) {
        double& m = memory[i * dim_ + j];
        m = m * decay + k[i] * change;
        o[j] += m * q[i];
      }
    }
    NormInPlace(o.data(), gamma_.data(), dim_);
    for (int64_t j = 0; j < dim_; ++j) {
      const double z = z_[t * out_width_ + h * dim_ + j];
      o[j] *= case_.sigmoid_gate ? Sigmoid(z) : Silu(z);
    }
    return o;
  }

  const int64_t dim_, heads_, key_heads_, width_;
  std::vector<float> qkv_, beta_, alpha_, z_, kernel_, a_, dt_, gamma_;
  std::unique_ptr<Buffer> qkv_buffer_, made_buffer_, beta_buffer_, alpha_buffer_, z_buffer_,
      kernel_buffer_, a_buffer_, dt_buffer_, gamma_buffer_;
  std::unique_ptr<SlotState> columns_, memory_;
};

// Mixes a wide residual down and combines it with the result, as a layer that is the identity
// would.
class HyperFixture final : public SequenceFixture {
 public:
  HyperFixture(Backend& backend, const OpCase& op_case)
      : SequenceFixture(backend, op_case), streams_(op_case.streams), width_(streams_ * case_.k) {
    out_width_ = width_;
  }

  absl::Status SetUp(int64_t poisoned_row) override {
    wide_ = RowsWith(1, width_, poisoned_row);
    gamma_ = Random(2, width_, 1);
    down_ = Random(3, width_ * case_.n, 0.2f);
    up_ = Random(4, width_ * case_.n, 0.5f);
    inject_ = Random(5, width_ * streams_, 0.3f);
    WL_ASSIGN_OR_RETURN(out_, Upload(wide_));
    WL_ASSIGN_OR_RETURN(gamma_buffer_, Upload(gamma_));
    WL_ASSIGN_OR_RETURN(down_weight_, Load(down_, width_, case_.n));
    WL_ASSIGN_OR_RETURN(up_weight_, Load(up_, case_.n, width_));
    WL_ASSIGN_OR_RETURN(inject_weight_, Load(inject_, width_, streams_));
    WL_ASSIGN_OR_RETURN(mixed_, backend_.Allocate(case_.rows * case_.k * 4));
    WL_ASSIGN_OR_RETURN(shares_, backend_.Allocate(case_.rows * streams_ * 4));
    return absl::OkStatus();
  }

  Values Expected() override {
    Values out;
    for (int64_t t = 0; t < case_.rows; ++t) {
      const Values row(wide_.begin() + t * width_, wide_.begin() + (t + 1) * width_);
      Values normed = row;
      for (int64_t i = 0; i < width_; i += case_.k) {
        NormInPlace(normed.data() + i, gamma_.data() + i, case_.k);
      }
      Values low = Times(down_, normed.data(), width_, case_.n);
      for (double& v : low) v = Silu(v / static_cast<double>(streams_));
      const Values gates = Times(up_, low.data(), case_.n, width_);
      const Values inject = Times(inject_, normed.data(), width_, streams_);
      Values mixed(case_.k);
      for (int64_t i = 0; i < width_; ++i) {
        mixed[i % case_.k] += normed[i] * Sigmoid(gates[i]) / static_cast<double>(streams_);
      }
      for (int64_t i = 0; i < width_; ++i) {
        const double share = 2 * Sigmoid(inject[i / case_.k] / static_cast<double>(streams_));
        out.push_back(row[i] + share * mixed[i % case_.k]);
      }
    }
    return out;
  }
  double Flops() const override { return 4.0 * case_.rows * width_ * case_.n; }

 protected:
  absl::Status RunRows(int64_t first, int64_t count) override {
    WL_RETURN_IF_ERROR(Refresh(wide_, first * width_, count * width_, *out_));
    const Tensor wide = RowsOf(out_, width_, first, count);
    const Tensor mixed = RowsOf(mixed_, case_.k, first, count);
    const Tensor shares = RowsOf(shares_, streams_, first, count);
    WL_RETURN_IF_ERROR(backend_.HyperMix({.wide = wide,
                                          .stream_count = case_.streams,
                                          .gamma = gamma_buffer_.get(),
                                          .down = {.weight = down_weight_.get()},
                                          .up = {.weight = up_weight_.get()},
                                          .inject = {.weight = inject_weight_.get()},
                                          .eps = kEps,
                                          .out = mixed,
                                          .inject_out = shares}));
    return backend_.HyperCombine(
        {.wide = wide, .y = mixed, .inject = shares, .stream_count = case_.streams});
  }

 private:
  const int64_t streams_, width_;
  std::vector<float> wide_, gamma_, down_, up_, inject_;
  std::unique_ptr<Buffer> gamma_buffer_, mixed_, shares_;
  std::unique_ptr<Weight> down_weight_, up_weight_, inject_weight_;
};

class PleFixture final : public SequenceFixture {
 public:
  static constexpr int kDilation = 3;

  PleFixture(Backend& backend, const OpCase& op_case)
      : SequenceFixture(backend, op_case), width_(op_case.streams * case_.k) {
    out_width_ = width_;
  }

  absl::Status SetUp(int64_t poisoned_row) override {
    wide_ = RowsWith(1, width_, poisoned_row);
    ngrams_ = RowsWith(2, case_.k, -1);
    for (int i = 0; i < 3; ++i) gammas_.push_back(Random(3 + i, width_, 1));
    kernel_ = Random(6, case_.taps * width_, 0.5f);
    key_ = Random(7, case_.k * width_, 0.2f);
    value_ = Random(8, case_.k * case_.k, 0.2f);
    WL_ASSIGN_OR_RETURN(out_, Upload(wide_));
    WL_ASSIGN_OR_RETURN(ngrams_buffer_, Upload(ngrams_));
    for (const std::vector<float>& gamma : gammas_) {
      WL_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer, Upload(gamma));
      gamma_buffers_.push_back(std::move(buffer));
    }
    WL_ASSIGN_OR_RETURN(kernel_buffer_, Upload(kernel_));
    WL_ASSIGN_OR_RETURN(key_weight_, Load(key_, case_.k, width_));
    WL_ASSIGN_OR_RETURN(value_weight_, Load(value_, case_.k, case_.k));
    return MakeState((case_.taps - 1) * kDilation * width_, columns_);
  }

  Values Expected() override {
    Values gated;
    Values normed;
    for (int64_t t = 0; t < case_.rows; ++t) {
      const Values ngram(ngrams_.begin() + t * case_.k, ngrams_.begin() + (t + 1) * case_.k);
      Values key = Times(key_, ngram.data(), case_.k, width_);
      const Values value = Times(value_, ngram.data(), case_.k, case_.k);
      Values query(wide_.begin() + t * width_, wide_.begin() + (t + 1) * width_);
      for (int64_t c = 0; c < width_; c += case_.k) {
        NormInPlace(key.data() + c, gammas_[0].data() + c, case_.k);
        NormInPlace(query.data() + c, gammas_[1].data() + c, case_.k);
        double score = 0;
        for (int64_t i = c; i < c + case_.k; ++i) score += key[i] * query[i];
        score /= std::sqrt(static_cast<double>(case_.k));
        const double root = std::sqrt(std::max(std::fabs(score), 1e-6));
        const double gate = Sigmoid(score > 0 ? root : score < 0 ? -root : 0);
        for (const double v : value) gated.push_back(gate * v);
        normed.insert(normed.end(), gated.end() - case_.k, gated.end());
        NormInPlace(normed.data() + t * width_ + c, gammas_[2].data() + c, case_.k);
      }
    }
    const Values conv = Convolved(normed, kernel_, width_, case_.taps, kDilation);
    for (size_t i = 0; i < gated.size(); ++i) gated[i] += wide_[i] + conv[i];
    return gated;
  }
  double Flops() const override { return 2.0 * case_.rows * case_.k * (width_ + case_.k); }

 protected:
  absl::Status RunRows(int64_t first, int64_t count) override {
    if (first == 0) WL_RETURN_IF_ERROR(columns_->Reset(1));
    WL_RETURN_IF_ERROR(Refresh(wide_, first * width_, count * width_, *out_));
    return backend_.Ple({.ngrams = RowsOf(ngrams_buffer_, case_.k, first, count),
                         .wide = RowsOf(out_, width_, first, count),
                         .stream_count = case_.streams,
                         .key = {.weight = key_weight_.get()},
                         .value = {.weight = value_weight_.get()},
                         .key_gamma = gamma_buffers_[0].get(),
                         .query_gamma = gamma_buffers_[1].get(),
                         .conv_gamma = gamma_buffers_[2].get(),
                         .conv_kernel = case_.taps,
                         .dilation = kDilation,
                         .kernel = kernel_buffer_.get(),
                         .eps = kEps,
                         .columns = columns_.get()});
  }

 private:
  const int64_t width_;
  std::vector<float> wide_, ngrams_, kernel_, key_, value_;
  std::vector<std::vector<float>> gammas_;
  std::vector<std::unique_ptr<Buffer>> gamma_buffers_;
  std::unique_ptr<Buffer> ngrams_buffer_, kernel_buffer_;
  std::unique_ptr<Weight> key_weight_, value_weight_;
  std::unique_ptr<SlotState> columns_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OpFixture>> MakeHybridFixture(Backend& backend,
                                                             const OpCase& op_case,
                                                             int64_t poisoned_row) {
  std::unique_ptr<SequenceFixture> fixture;
  if (op_case.op == CaseOp::kDeltaNet) {
    fixture = std::make_unique<DeltaFixture>(backend, op_case);
  } else if (op_case.op == CaseOp::kHyper) {
    fixture = std::make_unique<HyperFixture>(backend, op_case);
  } else {
    fixture = std::make_unique<PleFixture>(backend, op_case);
  }
  WL_RETURN_IF_ERROR(fixture->SetUp(poisoned_row));
  return fixture;
}

}  // namespace warpline
