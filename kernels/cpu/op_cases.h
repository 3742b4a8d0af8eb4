// Cases of the CPU back end's ops: shapes with their inputs, plain loops in double that give the
// right values, and the work of one run. The test compares, the benchmark times, both over the same
// tables.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace warpline {

enum class CaseOp {
  kLinear,
  kDenseFfn,
  kMoe,
  kNorm,
  kEmbed,
  kHead,
  kCandidates,
  kAttention,
  kDeltaNet,
  kHyper,
  kPle,
  kQsa
};

struct OpCase {
  CaseOp op = CaseOp::kLinear;
  QuantType type = QuantType::kF32;  // of the weights
  int64_t rows = 1;
  int64_t k = 32;  // input width; n_embd
  int64_t n = 32;  // output width; n_ff; vocabulary
  bool bias = false;
  bool scale = false;
  bool accumulate = false;
  bool renormalise = false;
  bool fused = false;   // experts: gate and up in one matrix
  bool shared = false;  // experts: with a shared expert
  float magnitude = 1;  // of the inputs of rows 0, 3, ..., beyond what halves hold in between
  int experts = 1;
  int used = 1;
  Activation activation = Activation::kSilu;
  float soft_cap = 0;
  KvType kv_type = KvType::kF32;
  int n_head = 1;
  int n_head_kv = 1;
  int head_dim = 16;
  int n_rot = 0;
  bool interleaved = false;
  bool head_norm = false;
  int64_t window = 0;
  int taps = 4;               // DeltaNet, n-grams: of the convolution
  bool grouped = false;       // DeltaNet: neighbouring value heads share a key head
  bool sigmoid_gate = false;  // DeltaNet
  int streams = 1;            // wide residuals
  int ratio = 0;              // sparse attention: tokens of a block
  int64_t blocks = 0;         // sparse attention: most blocks of a row
  int64_t context = 0;        // attention: tokens stored before the rows
  int64_t padding = 3;        // values between a row's end and the next row
  double bound = 1e-12;       // of the normalised mean square error
};

std::string CaseName(const OpCase& op_case);

// For the test: empty, one row, ragged tails, every tensor type.
std::vector<OpCase> TestCases();
// For the benchmark: the shapes of a small model and of wider ones.
std::vector<OpCase> BenchCases();

// One case set up on one back end. Inputs depend on the case alone.
class OpFixture {
 public:
  virtual ~OpFixture() = default;
  // Runs rows [first, first + count) of the case; their results replace those of earlier runs.
  virtual absl::Status Run(int64_t first, int64_t count) = 0;
  // All rows' results, [rows, width].
  virtual std::vector<float> Read() = 0;
  virtual std::vector<double> Expected() = 0;
  virtual double Flops() const = 0;        // of a run of all rows
  virtual double WeightBytes() const = 0;  // weights or cache read once
};

// `poisoned_row` >= 0: that row's input is NaN.
absl::StatusOr<std::unique_ptr<OpFixture>> MakeFixture(Backend& backend, const OpCase& op_case,
                                                       int64_t poisoned_row = -1);

}  // namespace warpline
