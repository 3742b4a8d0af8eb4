#include "kernels/cpu/op_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/quant_decode.h"

namespace warpline {
namespace {

using Values = std::vector<double>;

absl::Span<const uint8_t> BytesOf(const std::vector<float>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)};
}

std::vector<float> RandomFloats(uint32_t seed, int64_t count, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

absl::StatusOr<std::unique_ptr<Buffer>> UploadFloats(Backend& backend,
                                                     const std::vector<float>& values) {
  WL_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                      backend.Allocate(values.size() * sizeof(float)));
  WL_RETURN_IF_ERROR(backend.Upload(BytesOf(values), *buffer, 0));
  return buffer;
}

// A weight on the back end and its values (scale applied) here.
struct CaseWeight {
  std::unique_ptr<Weight> weight;
  std::unique_ptr<Buffer> bias;
  std::vector<float> values, scales, biases;
  int64_t k = 0, n = 0;

  LinearWeight linear() const { return {.weight = weight.get(), .bias = bias.get()}; }
  // y[n] of one expert for x[k].
  Values Times(const double* x, int64_t expert = 0) const {
    Values y(n);
    const double scale = scales.empty() ? 1 : scales[scales.size() == 1 ? 0 : expert];
    for (int64_t c = 0; c < n; ++c) {
      const float* column = values.data() + (expert * n + c) * k;
      for (int64_t i = 0; i < k; ++i) y[c] += x[i] * column[i];
      y[c] = y[c] * scale + (biases.empty() ? 0 : biases[c]);
    }
    return y;
  }
};

// Bytes that are finite blocks of any type: signed values where the type is a plain number,
// otherwise bytes without the bits that could make a half scale negative, huge or NaN.
std::vector<uint8_t> RandomBlocks(uint32_t seed, QuantType type, int64_t k, int64_t columns) {
  std::mt19937 random(seed);
  const int64_t bytes = RowBytes(type, k) * columns;
  std::vector<uint8_t> blocks(bytes);
  if (type == QuantType::kF32) {
    const std::vector<float> values = RandomFloats(seed, k * columns, 0.1f);
    std::memcpy(blocks.data(), values.data(), bytes);
    return blocks;
  }
  const bool plain = type == QuantType::kF16 || type == QuantType::kBF16;
  for (int64_t i = 0; i < bytes; ++i) {
    blocks[i] = static_cast<uint8_t>(random()) & (plain ? (i % 2 == 1 ? 0xBB : 0xFF) : 0x3B);
  }
  return blocks;
}

absl::Status MakeWeight(Backend& backend, uint32_t seed, QuantType type, int64_t k, int64_t n,
                        int64_t experts, bool scale, bool bias, CaseWeight& out) {
  const std::vector<uint8_t> blocks = RandomBlocks(seed, type, k, n * experts);
  out.k = k;
  out.n = n;
  out.values.resize(k * n * experts);
  DequantizeRow(type, blocks.data(), k * n * experts, out.values.data());
  if (scale) out.scales = RandomFloats(seed + 1, experts);
  if (bias) {
    out.biases = RandomFloats(seed + 2, n);
    WL_ASSIGN_OR_RETURN(out.bias, UploadFloats(backend, out.biases));
  }
  WL_ASSIGN_OR_RETURN(out.weight, backend.LoadWeight({.type = type,
                                                      .input_width = k,
                                                      .output_width = n,
                                                      .expert_count = experts,
                                                      .data = blocks,
                                                      .scales = out.scales}));
  return absl::OkStatus();
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double Activate(Activation activation, double x) {
  if (activation == Activation::kSilu) return x * Sigmoid(x);
  const double inner = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(inner));
}

// Input, output and access to rows: what all fixtures share. Rows are further apart than they are
// wide.
class RowFixture : public OpFixture {
 public:
  RowFixture(Backend& backend, const OpCase& op_case) : backend_(backend), case_(op_case) {}

  std::vector<float> Read() override {
    std::vector<float> all(std::max<int64_t>(1, case_.rows) * out_stride());
    const absl::Span<uint8_t> bytes(reinterpret_cast<uint8_t*>(all.data()),
                                    all.size() * sizeof(float));
    WL_CHECK(backend_.Download(*out_, 0, bytes).ok());
    std::vector<float> values;
    for (int64_t r = 0; r < case_.rows; ++r) {
      values.insert(values.end(), all.begin() + r * out_stride(),
                    all.begin() + r * out_stride() + out_width_);
    }
    return values;
  }

  absl::Status SetUp(int64_t in_width, int64_t out_width, int64_t poisoned_row) {
    in_width_ = in_width;
    out_width_ = out_width;
    x_ = RandomFloats(1, std::max<int64_t>(1, case_.rows) * in_stride());
    for (int64_t r = 0; r < case_.rows && case_.magnitude != 1; r += 3) {
      for (int64_t i = 0; i < in_width; ++i) x_[r * in_stride() + i] *= case_.magnitude;
    }
    if (poisoned_row >= 0) {
      std::fill_n(x_.begin() + poisoned_row * in_stride(), in_stride(),
                  std::numeric_limits<float>::quiet_NaN());
    }
    before_ = RandomFloats(2, std::max<int64_t>(1, case_.rows) * out_stride());
    WL_ASSIGN_OR_RETURN(in_, UploadFloats(backend_, x_));
    WL_ASSIGN_OR_RETURN(out_, UploadFloats(backend_, before_));
    return SetUpOp();
  }

  Values Expected() override {
    Values all;
    for (int64_t r = 0; r < case_.rows; ++r) {
      const Values x(x_.begin() + r * in_stride(), x_.begin() + r * in_stride() + in_width_);
      Values y = ExpectedRow(r, x);
      for (int64_t i = 0; case_.accumulate && i < out_width_; ++i)
        y[i] += before_[r * out_stride() + i];
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  }

 protected:
  virtual absl::Status SetUpOp() = 0;
  virtual Values ExpectedRow(int64_t row, const Values& x) = 0;

  int64_t in_stride() const { return in_width_ + case_.padding; }
  int64_t out_stride() const { return out_width_ + case_.padding; }
  Tensor In(int64_t first, int64_t count) {
    return {.buffer = in_.get(),
            .row_count = count,
            .width = in_width_,
            .stride = in_stride(),
            .first = first * in_stride()};
  }
  Tensor Out(int64_t first, int64_t count) {
    return {.buffer = out_.get(),
            .row_count = count,
            .width = out_width_,
            .stride = out_stride(),
            .first = first * out_stride()};
  }

  Backend& backend_;
  const OpCase case_;
  int64_t in_width_ = 0, out_width_ = 0;
  std::vector<float> x_, before_;
  std::unique_ptr<Buffer> in_, out_;
};

class LinearFixture final : public RowFixture {
 public:
  using RowFixture::RowFixture;
  absl::Status Run(int64_t first, int64_t count) override {
    if (case_.op == CaseOp::kLinear) {
      return backend_.Linear({.matrix = w_.linear(),
                              .in = In(first, count),
                              .out = Out(first, count),
                              .accumulate = case_.accumulate});
    }
    std::vector<int32_t> rows(count);
    for (int64_t i = 0; i < count; ++i) rows[i] = static_cast<int32_t>(HeadRow(first + i));
    return backend_.Head({.matrix = w_.linear(),
                          .in = In(0, case_.rows),
                          .rows = rows,
                          .soft_cap = case_.soft_cap,
                          .out = Out(first, count)});
  }
  double Flops() const override { return 2.0 * case_.rows * case_.k * case_.n; }
  double WeightBytes() const override {
    return static_cast<double>(RowBytes(case_.type, case_.k)) * case_.n;
  }

 protected:
  absl::Status SetUpOp() override {
    return MakeWeight(backend_, 10, case_.type, case_.k, case_.n, 1, case_.scale, case_.bias, w_);
  }
  Values ExpectedRow(int64_t row, const Values& x) override {
    if (case_.op == CaseOp::kLinear) return w_.Times(x.data());
    const float* const chosen = x_.data() + HeadRow(row) * in_stride();
    Values y = w_.Times(Values(chosen, chosen + in_width_).data());
    if (case_.soft_cap > 0) {
      for (double& v : y) v = case_.soft_cap * std::tanh(v / case_.soft_cap);
    }
    return y;
  }

 private:
  // Cases of the head with a bias choose their rows in reverse, so that they are no neighbours.
  int64_t HeadRow(int64_t row) const { return case_.bias ? case_.rows - 1 - row : row; }
  CaseWeight w_;
};

class FfnFixture final : public RowFixture {
 public:
  using RowFixture::RowFixture;
  absl::Status Run(int64_t first, int64_t count) override {
    return backend_.DenseFfn({.gate = gate_.linear(),
                              .up = up_.linear(),
                              .down = down_.linear(),
                              .activation = case_.activation,
                              .in = In(first, count),
                              .out = Out(first, count),
                              .accumulate = case_.accumulate});
  }
  double Flops() const override { return 6.0 * case_.rows * case_.k * case_.n; }
  double WeightBytes() const override { return 3.0 * RowBytes(case_.type, case_.k) * case_.n; }

 protected:
  absl::Status SetUpOp() override {
    const OpCase& c = case_;
    WL_RETURN_IF_ERROR(MakeWeight(backend_, 20, c.type, c.k, c.n, 1, c.scale, c.bias, gate_));
    WL_RETURN_IF_ERROR(MakeWeight(backend_, 30, c.type, c.k, c.n, 1, c.scale, c.bias, up_));
    return MakeWeight(backend_, 40, c.type, c.n, c.k, 1, c.scale, c.bias, down_);
  }
  Values ExpectedRow(int64_t, const Values& x) override {
    Values hidden = gate_.Times(x.data());
    const Values up = up_.Times(x.data());
    for (int64_t i = 0; i < case_.n; ++i) hidden[i] = Activate(case_.activation, hidden[i]) * up[i];
    return down_.Times(hidden.data());
  }

 private:
  CaseWeight gate_, up_, down_;
};

class MoeFixture final : public RowFixture {
 public:
  using RowFixture::RowFixture;
  absl::Status Run(int64_t first, int64_t count) override {
    MoeFfnArgs args{.router = router_.linear(),
                    .down = down_.weight.get(),
                    .used_count = case_.used,
                    .renormalise = case_.renormalise,
                    .in = In(first, count),
                    .out = Out(first, count),
                    .accumulate = case_.accumulate};
    args.gate = case_.fused ? nullptr : gate_.weight.get();
    args.up = case_.fused ? nullptr : up_.weight.get();
    args.gate_up = case_.fused ? gate_.weight.get() : nullptr;
    if (case_.shared) {
      args.shared_gate_input = shared_input_.weight.get();
      args.shared_gate = shared_gate_.linear();
      args.shared_up = shared_up_.linear();
      args.shared_down = shared_down_.linear();
    }
    return backend_.MoeFfn(args);
  }
  double Flops() const override {
    return 6.0 * case_.rows * case_.k * case_.n * (case_.used + (case_.shared ? 1 : 0));
  }
  double WeightBytes() const override {
    const double touched =
        std::min<double>(case_.experts, static_cast<double>(case_.rows) * case_.used);
    return 3.0 * RowBytes(case_.type, case_.k) * case_.n * touched;
  }

 protected:
  absl::Status SetUpOp() override {
    const OpCase& c = case_;
    WL_RETURN_IF_ERROR(
        MakeWeight(backend_, 50, QuantType::kF32, c.k, c.experts, 1, false, false, router_));
    WL_RETURN_IF_ERROR(MakeWeight(backend_, 60, c.type, c.k, c.fused ? 2 * c.n : c.n, c.experts,
                                  c.scale, false, gate_));
    if (!c.fused)
      WL_RETURN_IF_ERROR(
          MakeWeight(backend_, 70, c.type, c.k, c.n, c.experts, c.scale, false, up_));
    WL_RETURN_IF_ERROR(
        MakeWeight(backend_, 80, c.type, c.n, c.k, c.experts, c.scale, false, down_));
    if (!c.shared) return absl::OkStatus();
    WL_RETURN_IF_ERROR(
        MakeWeight(backend_, 90, QuantType::kF32, c.k, 1, 1, false, false, shared_input_));
    WL_RETURN_IF_ERROR(MakeWeight(backend_, 100, c.type, c.k, c.n, 1, false, false, shared_gate_));
    WL_RETURN_IF_ERROR(MakeWeight(backend_, 110, c.type, c.k, c.n, 1, false, false, shared_up_));
    return MakeWeight(backend_, 120, c.type, c.n, c.k, 1, false, false, shared_down_);
  }

  Values ExpectedRow(int64_t, const Values& x) override {
    Values p = router_.Times(x.data());
    const double largest = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& v : p) sum += v = std::exp(v - largest);
    for (double& v : p) v /= sum;
    std::vector<int> order(p.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::stable_sort(order.begin(), order.end(), [&p](int a, int b) { return p[a] > p[b]; });
    double used_sum = 0;
    for (int i = 0; i < case_.used; ++i) used_sum += p[order[i]];
    Values y(case_.k);
    for (int i = 0; i < case_.used; ++i) {
      const double weight =
          p[order[i]] / (case_.renormalise ? std::max(used_sum, std::ldexp(1.0, -14)) : 1);
      Values gate = gate_.Times(x.data(), order[i]);
      const Values up =
          case_.fused ? Values(gate.begin() + case_.n, gate.end()) : up_.Times(x.data(), order[i]);
      Add(weight, Gated(gate, up, down_, order[i]), y);
    }
    if (case_.shared) {
      const double weight = Sigmoid(shared_input_.Times(x.data())[0]);
      Add(weight, Gated(shared_gate_.Times(x.data()), shared_up_.Times(x.data()), shared_down_, 0),
          y);
    }
    return y;
  }

 private:
  static void Add(double weight, const Values& from, Values& to) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += weight * from[i];
  }
  static Values Gated(Values gate, const Values& up, const CaseWeight& down, int64_t expert) {
    for (size_t i = 0; i < up.size(); ++i) gate[i] = Activate(Activation::kSilu, gate[i]) * up[i];
    return down.Times(gate.data(), expert);
  }

  CaseWeight router_, gate_, up_, down_, shared_input_, shared_gate_, shared_up_, shared_down_;
};

class NormFixture final : public RowFixture {
 public:
  using RowFixture::RowFixture;
  absl::Status Run(int64_t first, int64_t count) override {
    return backend_.NormConvert({.in = In(first, count),
                                 .gamma = gamma_buffer_.get(),
                                 .eps = 1e-5f,
                                 .out = Out(first, count)});
  }
  double Flops() const override { return 4.0 * case_.rows * case_.k; }
  double WeightBytes() const override { return 8.0 * case_.rows * case_.k; }

 protected:
  absl::Status SetUpOp() override {
    gamma_ = RandomFloats(130, case_.k);
    WL_ASSIGN_OR_RETURN(gamma_buffer_, UploadFloats(backend_, gamma_));
    return absl::OkStatus();
  }
  Values ExpectedRow(int64_t, const Values& x) override {
    double squares = 0;
    for (const double v : x) squares += v * v;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
    Values y(x);
    for (size_t i = 0; i < y.size(); ++i) y[i] *= factor * gamma_[i];
    return y;
  }

 private:
  std::vector<float> gamma_;
  std::unique_ptr<Buffer> gamma_buffer_;
};

// Rows are tokens (7 row + 3) mod n.
class EmbedFixture final : public RowFixture {
 public:
  using RowFixture::RowFixture;
  absl::Status Run(int64_t first, int64_t count) override {
    std::vector<int32_t> tokens(count);
    for (int64_t i = 0; i < count; ++i) tokens[i] = Token(first + i);
    const std::vector<int32_t> pages(count / kPageTokens + 1);
    const std::vector<StepSequence> sequences = {
        {.row_count = static_cast<int>(count), .pages = pages}};
    WL_RETURN_IF_ERROR(backend_.BeginStep({.token_ids = tokens, .sequences = sequences}));
    const absl::Status status =
        backend_.Embed({.table = w_.weight.get(), .factor = 1.5f, .out = Out(first, count)});
    WL_RETURN_IF_ERROR(backend_.EndStep());
    return status;
  }
  double Flops() const override { return 0; }
  double WeightBytes() const override {
    return static_cast<double>(RowBytes(case_.type, case_.k)) * case_.rows;
  }

 protected:
  absl::Status SetUpOp() override {
    return MakeWeight(backend_, 140, case_.type, case_.k, case_.n, 1, case_.scale, false, w_);
  }
  Values ExpectedRow(int64_t row, const Values&) override {
    const float* values = w_.values.data() + Token(row) * case_.k;
    Values y(values, values + case_.k);
    for (double& v : y) v *= 1.5 * (w_.scales.empty() ? 1 : w_.scales[0]);
    return y;
  }

 private:
  int32_t Token(int64_t row) const { return static_cast<int32_t>((7 * row + 3) % case_.n); }
  CaseWeight w_;
};

}  // namespace

// In op_cases_attention.cc.
absl::StatusOr<std::unique_ptr<OpFixture>> MakeAttentionFixture(Backend& backend,
                                                                const OpCase& op_case,
                                                                int64_t poisoned_row);

// In op_cases_candidates.cc.
absl::StatusOr<std::unique_ptr<OpFixture>> MakeCandidatesFixture(Backend& backend,
                                                                 const OpCase& op_case,
                                                                 int64_t poisoned_row);

// In op_cases_hybrid.cc.
absl::StatusOr<std::unique_ptr<OpFixture>> MakeHybridFixture(Backend& backend,
                                                             const OpCase& op_case,
                                                             int64_t poisoned_row);

absl::StatusOr<std::unique_ptr<OpFixture>> MakeFixture(Backend& backend, const OpCase& op_case,
                                                       int64_t poisoned_row) {
  switch (op_case.op) {
    case CaseOp::kAttention:
    case CaseOp::kQsa:
      return MakeAttentionFixture(backend, op_case, poisoned_row);
    case CaseOp::kCandidates:
      return MakeCandidatesFixture(backend, op_case, poisoned_row);
    case CaseOp::kDeltaNet:
    case CaseOp::kHyper:
    case CaseOp::kPle:
      return MakeHybridFixture(backend, op_case, poisoned_row);
    default:
      break;
  }
  std::unique_ptr<RowFixture> fixture;
  int64_t out_width = op_case.k;
  switch (op_case.op) {
    case CaseOp::kDenseFfn:
      fixture = std::make_unique<FfnFixture>(backend, op_case);
      break;
    case CaseOp::kMoe:
      fixture = std::make_unique<MoeFixture>(backend, op_case);
      break;
    case CaseOp::kNorm:
      fixture = std::make_unique<NormFixture>(backend, op_case);
      break;
    case CaseOp::kEmbed:
      fixture = std::make_unique<EmbedFixture>(backend, op_case);
      break;
    default:
      fixture = std::make_unique<LinearFixture>(backend, op_case);
      out_width = op_case.n;
  }
  WL_RETURN_IF_ERROR(fixture->SetUp(op_case.k, out_width, poisoned_row));
  return fixture;
}

}  // namespace warpline
