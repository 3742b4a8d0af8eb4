// Candidate cases: rows of logits with edits, against a full sort in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "base/status.h"
#include "kernels/cpu/op_cases.h"

namespace warpline {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// What is not there; and sums are scaled so that an error of 1e-6 of them is seen beside the ids.
constexpr double kAbsent = -1;
constexpr double kSumSize = 1000;

// The case's `n` logits of each row; `used` candidates; with `bias` each row is edited; `scale`
// asks for the sum of weights; `blocks` > 0: as many different values, so that most are ties.
class CandidatesFixture final : public OpFixture {
 public:
  CandidatesFixture(Backend& backend, const OpCase& op_case) : backend_(backend), case_(op_case) {}

  absl::Status SetUp(int64_t poisoned_row) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 3);
    logits_.resize(std::max<int64_t>(1, case_.rows) * stride());
    for (float& logit : logits_) {
      logit = normal(random);
      if (case_.blocks > 0) logit = std::round(logit * case_.blocks / 20);
    }
    if (poisoned_row >= 0) logits_[poisoned_row * stride() + case_.n / 2] = kNan;
    edits_.resize(case_.rows);
    for (std::vector<LogitEdit>& edits : edits_) {
      if (case_.bias) edits = RandomEdits(random);
    }
    found_.resize(case_.rows);
    WL_ASSIGN_OR_RETURN(buffer_, backend_.Allocate(logits_.size() * sizeof(float)));
    return UploadRows(0, static_cast<int64_t>(logits_.size()) / stride());
  }

  absl::Status Run(int64_t first, int64_t count) override {
    // The op edits in place.
    if (case_.bias) WL_RETURN_IF_ERROR(UploadRows(first, count));
    std::vector<CandidateQuery> queries;
    for (int64_t row = first; row < first + count; ++row) queries.push_back(QueryOf(row));
    return backend_.TopCandidates({.logits = {.buffer = buffer_.get(),
                                              .row_count = count,
                                              .width = case_.n,
                                              .stride = stride(),
                                              .first = first * stride()},
                                   .queries = queries,
                                   .out = absl::MakeSpan(found_).subspan(first, count)});
  }

  std::vector<float> Read() override {
    std::vector<float> values;
    for (int64_t row = 0; row < case_.rows; ++row) {
      const std::vector<double> all = ValuesOf(found_[row], SumUnit(row));
      values.insert(values.end(), all.begin(), all.end());
      // The logits that were edited, as they lie in memory now.
      for (const LogitEdit& edit : edits_[row]) {
        float logit = 0;
        const int64_t at = row * stride() + edit.token_id;
        const absl::Span<uint8_t> bytes(reinterpret_cast<uint8_t*>(&logit), sizeof(logit));
        WL_CHECK(backend_.Download(*buffer_, at * sizeof(float), bytes).ok());
        const float shown = logit == -kInfinity ? static_cast<float>(kAbsent) : logit;
        values.push_back(found_[row].all_finite ? shown : kNan);
      }
    }
    return values;
  }

  std::vector<double> Expected() override {
    std::vector<double> values;
    for (int64_t row = 0; row < case_.rows; ++row) {
      const std::vector<float> edited = EditedRow(row);
      const std::vector<double> all = ValuesOf(ExpectedRow(row, edited), SumUnit(row));
      values.insert(values.end(), all.begin(), all.end());
      for (const LogitEdit& edit : edits_[row]) {
        const float logit = edited[edit.token_id];
        values.push_back(logit == -kInfinity ? kAbsent : logit);
      }
    }
    return values;
  }
  double Flops() const override { return 0; }
  double WeightBytes() const override {
    return static_cast<double>(case_.rows) * case_.n * sizeof(float);
  }

 private:
  int64_t stride() const { return case_.n + case_.padding; }

  absl::Status UploadRows(int64_t first, int64_t count) {
    const absl::Span<const uint8_t> bytes(
        reinterpret_cast<const uint8_t*>(logits_.data() + first * stride()),
        count * stride() * sizeof(float));
    return backend_.Upload(bytes, *buffer_, first * stride() * sizeof(float));
  }

  // Biases, some of them forbidding, and counts; a token may have several.
  std::vector<LogitEdit> RandomEdits(std::mt19937& random) const {
    std::vector<LogitEdit> edits;
    for (int i = 0; i < 70; ++i) {
      LogitEdit edit{.token_id = static_cast<int32_t>(random() % case_.n)};
      if (i % 2 == 0) edit.bias = static_cast<float>(static_cast<int>(random() % 200) - 100) / 16;
      if (i % 10 == 4) edit.bias = -kInfinity;
      if (i % 3 == 0) edit.count = static_cast<int32_t>(random() % 5);
      edits.push_back(edit);
    }
    std::stable_sort(edits.begin(), edits.end(), [](const LogitEdit& a, const LogitEdit& b) {
      return a.token_id < b.token_id;
    });
    return edits;
  }

  double TemperatureOf(int64_t row) const { return row % 2 == 0 ? 1 : 0.7; }
  // Rows differ in how many candidates are asked for; the first asks for `used`.
  int UsedOf(int64_t row) const { return std::max(1, case_.used >> (row % 9)); }

  CandidateQuery QueryOf(int64_t row) const {
    return {.edits = edits_[row],
            .repetition_penalty = 1.25f,
            .presence_penalty = 0.5f,
            .frequency_penalty = 0.3f,
            .temperature = case_.scale ? TemperatureOf(row) : 0,
            .least = UsedOf(row),
            .most = UsedOf(row)};
  }

  std::vector<float> EditedRow(int64_t row) const {
    std::vector<float> logits(logits_.begin() + row * stride(),
                              logits_.begin() + row * stride() + case_.n);
    const CandidateQuery query = QueryOf(row);
    for (const LogitEdit& edit : query.edits) {
      float& logit = logits[edit.token_id];
      logit += edit.bias;
      if (edit.count == 0) continue;
      const double penalty = query.repetition_penalty;
      const double scaled = logit > 0 ? logit / penalty : logit * penalty;
      logit = static_cast<float>(scaled - query.presence_penalty -
                                 static_cast<double>(query.frequency_penalty) * edit.count);
    }
    return logits;
  }

  RowCandidates ExpectedRow(int64_t row, const std::vector<float>& logits) const {
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    const auto used = std::min<size_t>(UsedOf(row), order.size());
    std::partial_sort(order.begin(), order.begin() + used, order.end(), [&](int32_t a, int32_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    RowCandidates expected{.largest = logits[order[0]]};
    for (size_t i = 0; i < used; ++i) {
      if (logits[order[i]] == -kInfinity) break;
      expected.candidates.push_back({.logit = logits[order[i]], .token_id = order[i]});
    }
    for (const float logit : logits) {
      if (!case_.scale || expected.candidates.empty()) break;
      expected.weight_sum +=
          std::exp((static_cast<double>(logit) - expected.largest) / TemperatureOf(row));
    }
    return expected;
  }

  double SumUnit(int64_t row) const {
    const double sum = ExpectedRow(row, EditedRow(row)).weight_sum;
    return sum > 0 ? kSumSize / sum : 1;
  }

  // One row's answer as numbers, of a length that depends on the case alone.
  std::vector<double> ValuesOf(const RowCandidates& row, double sum_unit) const {
    std::vector<double> values = {row.largest == -kInfinity ? kAbsent : row.largest,
                                  row.weight_sum * sum_unit};
    for (int i = 0; i < case_.used; ++i) {
      const bool is_there = i < static_cast<int>(row.candidates.size());
      values.push_back(is_there ? row.candidates[i].token_id : kAbsent);
      values.push_back(is_there ? row.candidates[i].logit : kAbsent);
    }
    if (!row.all_finite) std::fill(values.begin(), values.end(), kNan);
    return values;
  }

  Backend& backend_;
  const OpCase case_;
  std::vector<float> logits_;  // [rows, stride]
  std::vector<std::vector<LogitEdit>> edits_;
  std::vector<RowCandidates> found_;
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OpFixture>> MakeCandidatesFixture(Backend& backend,
                                                                 const OpCase& op_case,
                                                                 int64_t poisoned_row) {
  auto fixture = std::make_unique<CandidatesFixture>(backend, op_case);
  WL_RETURN_IF_ERROR(fixture->SetUp(poisoned_row));
  return fixture;
}

}  // namespace warpline
