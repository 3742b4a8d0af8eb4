// Attention cases: one sequence whose tokens are rotated, stored and attended to, over pages in a
// shuffled order.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "base/status.h"
#include "kernels/cpu/op_cases.h"

namespace warpline {
namespace {

constexpr double kBase = 10000;
constexpr double kMagnitude = 1.25;
constexpr float kEps = 1e-6f;

std::vector<float> RandomFloats(uint32_t seed, int64_t count) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

class AttentionFixture final : public OpFixture {
 public:
  AttentionFixture(Backend& backend, const OpCase& op_case)
      : backend_(backend),
        case_(op_case),
        q_width_(int64_t{op_case.n_head} * op_case.head_dim),
        kv_width_(int64_t{op_case.n_head_kv} * op_case.head_dim) {}

  absl::Status SetUp(int64_t poisoned_row) {
    const int64_t total = case_.context + case_.rows;
    q_ = RandomFloats(1, total * q_width_);
    k_ = RandomFloats(2, total * kv_width_);
    v_ = RandomFloats(3, total * kv_width_);
    if (poisoned_row >= 0) {
      const float nan = std::numeric_limits<float>::quiet_NaN();
      const int64_t row = case_.context + poisoned_row;
      std::fill_n(q_.begin() + row * q_width_, q_width_, nan);
      std::fill_n(k_.begin() + row * kv_width_, kv_width_, nan);
      std::fill_n(v_.begin() + row * kv_width_, kv_width_, nan);
    }
    q_gamma_ = RandomFloats(4, case_.head_dim);
    k_gamma_ = RandomFloats(5, case_.head_dim);
    for (int i = 0; i < case_.n_rot / 2; ++i) {
      inverse_frequency_.push_back(std::pow(kBase, -2.0 * i / case_.n_rot));
    }
    const int64_t page_count = total / kPageTokens + 1;
    pages_.resize(page_count);
    std::iota(pages_.begin(), pages_.end(), 1);  // page 0 belongs to nobody
    std::shuffle(pages_.begin(), pages_.end(), std::mt19937(6));
    WL_ASSIGN_OR_RETURN(q_gamma_buffer_, Upload(q_gamma_));
    WL_ASSIGN_OR_RETURN(k_gamma_buffer_, Upload(k_gamma_));
    WL_ASSIGN_OR_RETURN(q_buffer_, Upload(q_));
    WL_ASSIGN_OR_RETURN(k_buffer_, Upload(k_));
    WL_ASSIGN_OR_RETURN(v_buffer_, Upload(v_));
    WL_ASSIGN_OR_RETURN(out_buffer_, backend_.Allocate(std::max<int64_t>(1, total * q_width_) * 4));
    WL_ASSIGN_OR_RETURN(cache_, backend_.CreateKvCache({.type = case_.kv_type,
                                                        .n_head_kv = case_.n_head_kv,
                                                        .head_dim = case_.head_dim,
                                                        .page_count = page_count + 1}));
    if (case_.op == CaseOp::kQsa) WL_RETURN_IF_ERROR(SetUpIndexer(total, page_count + 1));
    return case_.context > 0 ? RunPositions(0, case_.context) : absl::OkStatus();
  }

  absl::Status Run(int64_t first, int64_t count) override {
    return RunPositions(case_.context + first, count);
  }

  std::vector<float> Read() override {
    std::vector<float> out(case_.rows * q_width_);
    const absl::Span<uint8_t> bytes(reinterpret_cast<uint8_t*>(out.data()),
                                    out.size() * sizeof(float));
    WL_CHECK(backend_.Download(*out_buffer_, case_.context * q_width_ * 4, bytes).ok());
    return out;
  }

  std::vector<double> Expected() override {
    const int64_t total = case_.context + case_.rows;
    const std::vector<double> q = Prepared(q_, case_.n_head, q_gamma_);
    const std::vector<double> k = Prepared(k_, case_.n_head_kv, k_gamma_);
    std::vector<double> out(case_.rows * q_width_);
    for (int64_t p = case_.context; p < total; ++p) {
      const std::vector<int64_t> visible = VisibleTo(p);
      for (int h = 0; h < case_.n_head; ++h)
        ExpectedHead(q, k, p, visible, h, out.data() + (p - case_.context) * q_width_);
    }
    return out;
  }

  double Flops() const override {
    double keys = 0;
    for (int64_t r = 0; r < case_.rows; ++r) {
      const int64_t seen = case_.context + r + 1;
      keys += case_.window > 0 ? std::min(seen, case_.window) : seen;
    }
    return 4.0 * keys * q_width_;
  }
  double WeightBytes() const override {
    const double value_bytes = case_.kv_type == KvType::kF32   ? 4
                               : case_.kv_type == KvType::kF16 ? 2
                                                               : 1.0625;
    return 2 * value_bytes * (case_.context + case_.rows) * kv_width_;
  }

 private:
  absl::StatusOr<std::unique_ptr<Buffer>> Upload(const std::vector<float>& values) {
    const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(values.data()),
                                          values.size() * sizeof(float));
    WL_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer, backend_.Allocate(bytes.size()));
    WL_RETURN_IF_ERROR(backend_.Upload(bytes, *buffer, 0));
    return buffer;
  }

  // The op changes q and k in place, so each run starts from fresh copies.
  absl::Status RunPositions(int64_t first, int64_t count) {
    const auto rows_of = [&](std::unique_ptr<Buffer>& buffer, int64_t width) {
      return Tensor{.buffer = buffer.get(),
                    .row_count = count,
                    .width = width,
                    .stride = width,
                    .first = first * width};
    };
    const auto refresh = [&](const std::vector<float>& values, std::unique_ptr<Buffer>& buffer,
                             int64_t width) {
      const absl::Span<const uint8_t> bytes(
          reinterpret_cast<const uint8_t*>(values.data() + first * width),
          count * width * sizeof(float));
      return backend_.Upload(bytes, *buffer, first * width * 4);
    };
    WL_RETURN_IF_ERROR(refresh(q_, q_buffer_, q_width_));
    WL_RETURN_IF_ERROR(refresh(k_, k_buffer_, kv_width_));
    const std::vector<int32_t> tokens(count);
    const std::vector<StepSequence> sequences = {
        {.first_position = first, .row_count = static_cast<int>(count), .pages = pages_}};
    WL_RETURN_IF_ERROR(backend_.BeginStep({.token_ids = tokens, .sequences = sequences}));
    QkvRopeStoreArgs store{.q = rows_of(q_buffer_, q_width_),
                           .k = rows_of(k_buffer_, kv_width_),
                           .v = rows_of(v_buffer_, kv_width_),
                           .n_head = case_.n_head,
                           .n_head_kv = case_.n_head_kv,
                           .head_dim = case_.head_dim,
                           .eps = kEps,
                           .cache = cache_.get()};
    store.q_gamma = case_.head_norm ? q_gamma_buffer_.get() : nullptr;
    store.k_gamma = case_.head_norm ? k_gamma_buffer_.get() : nullptr;
    store.rope = {.interleaved = case_.interleaved,
                  .inverse_frequency = inverse_frequency_,
                  .magnitude = kMagnitude};
    WL_RETURN_IF_ERROR(backend_.QkvRopeStore(store));
    const AttentionArgs attention{.q = store.q,
                                  .out = rows_of(out_buffer_, q_width_),
                                  .n_head = case_.n_head,
                                  .n_head_kv = case_.n_head_kv,
                                  .head_dim = case_.head_dim,
                                  .scale = Scale(),
                                  .window = case_.window,
                                  .cache = cache_.get()};
    if (case_.op == CaseOp::kQsa) {
      WL_RETURN_IF_ERROR(refresh(index_q_, index_q_buffer_, kIndexWidth));
      WL_RETURN_IF_ERROR(backend_.QsaIndexSelect({.q = rows_of(index_q_buffer_, kIndexWidth),
                                                  .k = rows_of(index_k_buffer_, kIndexDim),
                                                  .n_head = kIndexHeads,
                                                  .head_dim = kIndexDim,
                                                  .ratio = case_.ratio,
                                                  .most_blocks = case_.blocks,
                                                  .q_gamma = index_q_gamma_buffer_.get(),
                                                  .k_gamma = index_k_gamma_buffer_.get(),
                                                  .eps = kEps,
                                                  .rope = store.rope,
                                                  .raw_keys = raw_keys_.get(),
                                                  .pooled_keys = pooled_keys_.get(),
                                                  .selection = selection_.get()}));
      WL_RETURN_IF_ERROR(backend_.QsaAttend({.attention = attention,
                                             .ratio = case_.ratio,
                                             .most_blocks = case_.blocks,
                                             .selection = selection_.get()}));
    } else {
      WL_RETURN_IF_ERROR(backend_.Attention(attention));
    }
    return backend_.EndStep();
  }

  absl::Status SetUpIndexer(int64_t total, int64_t page_count) {
    index_q_ = RandomFloats(11, total * kIndexWidth);
    index_k_ = RandomFloats(12, total * kIndexDim);
    index_q_gamma_ = RandomFloats(13, kIndexDim);
    index_k_gamma_ = RandomFloats(14, kIndexDim);
    WL_ASSIGN_OR_RETURN(index_q_buffer_, Upload(index_q_));
    WL_ASSIGN_OR_RETURN(index_k_buffer_, Upload(index_k_));
    WL_ASSIGN_OR_RETURN(index_q_gamma_buffer_, Upload(index_q_gamma_));
    WL_ASSIGN_OR_RETURN(index_k_gamma_buffer_, Upload(index_k_gamma_));
    const int64_t raw_values = int64_t{case_.ratio - 1} * kIndexDim;
    WL_ASSIGN_OR_RETURN(raw_keys_,
                        backend_.CreateSlotState({.slot_count = 1, .value_count = raw_values}));
    const int64_t pooled = page_count * PooledKeysOfPage(case_.ratio) * kIndexDim;
    WL_ASSIGN_OR_RETURN(pooled_keys_, backend_.Allocate(pooled * 4));
    WL_ASSIGN_OR_RETURN(selection_, backend_.Allocate(total * (1 + case_.blocks) * 4));
    return absl::OkStatus();
  }

  // Which positions a row sees: all up to itself, fewer with a window, chosen blocks and the tokens
  // behind the last complete one with an indexer.
  std::vector<int64_t> VisibleTo(int64_t position) const {
    std::vector<int64_t> visible;
    const auto add = [&visible](int64_t first, int64_t end) {
      for (int64_t t = first; t < end; ++t) visible.push_back(t);
    };
    if (case_.op != CaseOp::kQsa) {
      add(case_.window > 0 ? std::max<int64_t>(0, position - case_.window + 1) : 0, position + 1);
      return visible;
    }
    const int64_t complete = (position + 1) / case_.ratio;
    if (complete <= case_.blocks) {
      add(0, position + 1);
      return visible;
    }
    std::vector<int64_t> order(complete);
    std::iota(order.begin(), order.end(), 0);
    const std::vector<double> scores = BlockScores(position, complete);
    std::stable_sort(order.begin(), order.end(),
                     [&scores](int64_t a, int64_t b) { return scores[a] > scores[b]; });
    for (int64_t i = 0; i < case_.blocks; ++i) {
      add(order[i] * case_.ratio, (order[i] + 1) * case_.ratio);
    }
    add(complete * case_.ratio, position + 1);
    return visible;
  }

  std::vector<double> BlockScores(int64_t position, int64_t complete) const {
    std::vector<double> scores(complete);
    std::vector<double> q(index_q_.begin() + position * kIndexWidth,
                          index_q_.begin() + (position + 1) * kIndexWidth);
    for (int h = 0; h < kIndexHeads; ++h) {
      Prepare(q.data() + h * kIndexDim, kIndexDim, position, &index_q_gamma_);
    }
    for (int64_t b = 0; b < complete; ++b) {
      std::vector<double> key(kIndexDim);
      for (int64_t t = b * case_.ratio; t < (b + 1) * case_.ratio; ++t) {
        for (int i = 0; i < kIndexDim; ++i) key[i] += index_k_[t * kIndexDim + i] / case_.ratio;
      }
      Prepare(key.data(), kIndexDim, b * case_.ratio, &index_k_gamma_);
      for (int h = 0; h < kIndexHeads; ++h) {
        double dot = 0;
        for (int i = 0; i < kIndexDim; ++i) dot += q[h * kIndexDim + i] * key[i];
        scores[b] += std::max(dot, 0.0);
      }
    }
    return scores;
  }

  float Scale() const { return 1 / std::sqrt(static_cast<float>(case_.head_dim)); }

  // Norm (unless `gamma` is null) and rotation of one head, in double.
  void Prepare(double* head, int dim, int64_t position, const std::vector<float>* gamma) const {
    if (gamma != nullptr) {
      double squares = 0;
      for (int i = 0; i < dim; ++i) squares += head[i] * head[i];
      const double factor = 1 / std::sqrt(squares / dim + kEps);
      for (int i = 0; i < dim; ++i) head[i] *= factor * (*gamma)[i];
    }
    for (int i = 0; i < case_.n_rot / 2; ++i) {
      double& a = head[case_.interleaved ? 2 * i : i];
      double& b = head[case_.interleaved ? 2 * i + 1 : i + case_.n_rot / 2];
      const double angle = static_cast<double>(position) * inverse_frequency_[i];
      const double c = std::cos(angle) * kMagnitude, s = std::sin(angle) * kMagnitude;
      const double old_a = a;
      a = old_a * c - b * s;
      b = b * c + old_a * s;
    }
  }

  // All heads of all positions.
  std::vector<double> Prepared(const std::vector<float>& raw, int heads,
                               const std::vector<float>& gamma) const {
    std::vector<double> values(raw.begin(), raw.end());
    const int dim = case_.head_dim;
    for (size_t start = 0; start < values.size(); start += dim) {
      const auto position = static_cast<int64_t>(start / (static_cast<size_t>(heads) * dim));
      Prepare(values.data() + start, dim, position, case_.head_norm ? &gamma : nullptr);
    }
    return values;
  }

  void ExpectedHead(const std::vector<double>& q, const std::vector<double>& k, int64_t position,
                    absl::Span<const int64_t> visible, int head, double* out) const {
    const int dim = case_.head_dim;
    const int64_t kv_first = int64_t{head / (case_.n_head / case_.n_head_kv)} * dim;
    const double* query = q.data() + position * q_width_ + int64_t{head} * dim;
    double largest = -std::numeric_limits<double>::infinity(), total = 0;
    std::vector<double> p;
    for (const int64_t t : visible) {
      double score = 0;
      for (int i = 0; i < dim; ++i) score += query[i] * k[t * kv_width_ + kv_first + i];
      p.push_back(score * Scale());
      largest = std::max(largest, p.back());
    }
    for (double& v : p) total += v = std::exp(v - largest);
    for (int i = 0; i < dim; ++i) {
      double sum = 0;
      for (size_t t = 0; t < visible.size(); ++t)
        sum += p[t] * v_[visible[t] * kv_width_ + kv_first + i];
      out[int64_t{head} * dim + i] = sum / total;
    }
  }

  Backend& backend_;
  const OpCase case_;
  const int64_t q_width_, kv_width_;
  std::vector<float> q_, k_, v_, q_gamma_, k_gamma_;
  std::vector<double> inverse_frequency_;
  std::vector<int32_t> pages_;
  std::unique_ptr<Buffer> q_gamma_buffer_, k_gamma_buffer_, q_buffer_, k_buffer_, v_buffer_,
      out_buffer_;
  std::unique_ptr<KvCache> cache_;
  // The indexer of sparse attention.
  static constexpr int kIndexHeads = 12;  // enough that no score is zero
  static constexpr int kIndexDim = 24;
  static constexpr int kIndexWidth = kIndexHeads * kIndexDim;
  std::vector<float> index_q_, index_k_, index_q_gamma_, index_k_gamma_;
  std::unique_ptr<Buffer> index_q_buffer_, index_k_buffer_, index_q_gamma_buffer_,
      index_k_gamma_buffer_, pooled_keys_, selection_;
  std::unique_ptr<SlotState> raw_keys_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OpFixture>> MakeAttentionFixture(Backend& backend,
                                                                const OpCase& op_case,
                                                                int64_t poisoned_row) {
  auto fixture = std::make_unique<AttentionFixture>(backend, op_case);
  WL_RETURN_IF_ERROR(fixture->SetUp(poisoned_row));
  return fixture;
}

}  // namespace warpline
