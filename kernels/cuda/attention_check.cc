// Compares attention, and what stores keys and values before it, with plain loops in double: many
// shapes, prompts and decode steps, and whether a row's bits depend on anything but its sequence.
// --bench measures instead. Ends with 77 where there is no device.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_bench.h"
#include "kernels/cuda/attention_rig.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/random_blocks.h"

namespace warpline::cuda {
namespace {

// Contexts of the sequences: around the borders of pages, and long ones.
constexpr int kContexts[] = {1, 63, 64, 65, 200, 4097};
constexpr int kLong = 5;    // the last sequence
constexpr int kMiddle = 4;  // the one of 200

constexpr AttentionShape kShapes[] = {
    {.n_head = 16, .n_head_kv = 2, .head_dim = 128, .has_norm = true, .pairs = 64},
    {.n_head = 3, .n_head_kv = 1, .head_dim = 128, .window = 100, .pairs = 64},
    {.n_head = 24, .n_head_kv = 2, .head_dim = 128, .has_gate = true},
    {.n_head = 9, .n_head_kv = 3, .head_dim = 64, .pairs = 32},
    {.n_head = 2, .n_head_kv = 2, .head_dim = 64, .pairs = 32, .is_interleaved = true},
    {.n_head = 12, .n_head_kv = 1, .head_dim = 64, .window = 1000},
    {.n_head = 12,
     .n_head_kv = 1,
     .head_dim = 256,
     .has_gate = true,
     .has_norm = true,
     .pairs = 32},
    {.n_head = 8, .n_head_kv = 2, .head_dim = 256, .window = 300, .pairs = 128},
    {.n_head = 4, .n_head_kv = 1, .head_dim = 80, .pairs = 40},
    {.n_head = 34, .n_head_kv = 1, .head_dim = 64},
    {.kv_type = KvType::kF32, .n_head = 1, .n_head_kv = 1, .head_dim = 16, .pairs = 4},
    {.kv_type = KvType::kF32, .n_head = 8, .n_head_kv = 1, .head_dim = 128, .window = 70},
    {.kv_type = KvType::kQ8_0, .n_head = 4, .n_head_kv = 1, .head_dim = 32, .pairs = 16},
    {.kv_type = KvType::kQ8_0, .n_head = 6, .n_head_kv = 2, .head_dim = 80},
    {.kv_type = KvType::kQ8_0, .n_head = 16, .n_head_kv = 2, .head_dim = 128, .pairs = 64},
    {.kv_type = KvType::kQ8_0, .n_head = 12, .n_head_kv = 1, .head_dim = 128, .window = 500},
    {.kv_type = KvType::kQ8_0, .n_head = 9, .n_head_kv = 3, .head_dim = 64},
    {.kv_type = KvType::kQ8_0, .n_head = 12, .n_head_kv = 1, .head_dim = 256, .has_gate = true},
    {.kv_type = KvType::kQ8_0, .n_head = 4, .n_head_kv = 1, .head_dim = 256},
};

std::vector<int> AllContexts() { return {std::begin(kContexts), std::end(kContexts)}; }

const char* PathName(AttentionPath path) {
  switch (path) {
    case AttentionPath::kPrompt:
      return "prompt";
    case AttentionPath::kDecode:
      return "decode";
    case AttentionPath::kGeneric:
      return "generic";
  }
  return "";
}

// Of the root mean square: generic is all in float, the others round q and weights to halves.
double BoundOf(AttentionPath path) { return path == AttentionPath::kGeneric ? 2e-5 : 1.5e-3; }

// One head of one row, from what the cache holds.
std::vector<double> Reference(const AttentionRig& rig, int sequence, int position, int head) {
  const AttentionShape& shape = rig.shape();
  const int dim = shape.head_dim;
  const int kv_head = head / (shape.n_head / shape.n_head_kv);
  const std::vector<double> q =
      rig.Turned(rig.Queries(sequence, position), rig.q_gamma(), position);
  const int first = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
  std::vector<double> scores;
  for (int key = first; key <= position; ++key) {
    double score = 0;
    for (int d = 0; d < dim; ++d) {
      score +=
          q[static_cast<size_t>(head * dim + d)] * rig.Stored(sequence, key, kv_head, false, d);
    }
    scores.push_back(score * rig.scale());
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  std::vector<double> out(static_cast<size_t>(dim));
  double total = 0;
  for (int key = first; key <= position; ++key) {
    const double weight = std::exp(scores[static_cast<size_t>(key - first)] - largest);
    total += weight;
    for (int d = 0; d < dim; ++d) {
      out[static_cast<size_t>(d)] += weight * rig.Stored(sequence, key, kv_head, true, d);
    }
  }
  const std::vector<float> gates =
      shape.has_gate ? rig.Gates(sequence, position) : std::vector<float>();
  for (int d = 0; d < dim; ++d) {
    double& value = out[static_cast<size_t>(d)];
    value /= total;
    if (shape.has_gate) value /= 1 + std::exp(-gates[static_cast<size_t>(head * dim + d)]);
  }
  return out;
}

// The relative root mean square error of one head of one row of outputs.
double ErrorOf(const AttentionRig& rig, const float* out_row, int sequence, int position,
               int head) {
  const std::vector<double> reference = Reference(rig, sequence, position, head);
  double error = 0, size = 0;
  for (size_t d = 0; d < reference.size(); ++d) {
    const double difference =
        out_row[static_cast<size_t>(head) * reference.size() + d] - reference[d];
    error += difference * difference;
    size += reference[d] * reference[d];
  }
  const double relative = std::sqrt(error / size);
  return std::isnan(relative) ? INFINITY : relative;
}

// The largest error of stored values of one token, in units of what rounding to the type allows.
double StoredError(const AttentionRig& rig, int sequence, int position) {
  const AttentionShape& shape = rig.shape();
  const KvLayout layout = MakeKvLayout(shape.kv_type, shape.head_dim);
  const std::vector<float> values = rig.Values(sequence, position);
  const std::vector<double> expected[2] = {
      rig.Turned(rig.Keys(sequence, position), rig.k_gamma(), position),
      std::vector<double>(values.begin(), values.end())};
  double worst = 0;
  for (const bool is_value : {false, true}) {
    const std::vector<double>& row = expected[is_value ? 1 : 0];
    for (size_t i = 0; i < row.size(); ++i) {
      double allowed = 1e-5 * std::max(1.0, std::fabs(row[i]));
      if (shape.kv_type == KvType::kF16) allowed += std::fabs(row[i]) / 2048;
      if (shape.kv_type == KvType::kQ8_0) {
        const size_t group = static_cast<size_t>(layout.group);
        const auto first = row.begin() + static_cast<std::ptrdiff_t>(i / group * group);
        double largest = 0;
        for (auto at = first; at != first + layout.group; ++at) {
          largest = std::max(largest, std::fabs(*at));
        }
        allowed += largest / 127 * (0.5 + 127.0 / 2048);
      }
      const int dim = shape.head_dim;
      const double stored = rig.Stored(sequence, position, static_cast<int>(i) / dim, is_value,
                                       static_cast<int>(i) % dim);
      const double error = std::fabs(stored - row[i]) / allowed;
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }
  return worst;
}

class Check {
 public:
  explicit Check(PagedAttention attention) : attention_(std::move(attention)) {}

  absl::Status Run() {
    std::printf("%-34s %-8s %9s %9s  bits\n", "shape", "path", "error", "stored");
    for (const AttentionShape& shape : kShapes) {
      WL_RETURN_IF_ERROR(attention_.Reserve({.kv_type = shape.kv_type,
                                             .n_head = shape.n_head,
                                             .n_head_kv = shape.n_head_kv,
                                             .head_dim = shape.head_dim,
                                             .max_decode_rows = 8,
                                             .max_context = kContexts[kLong]}));
      WL_RETURN_IF_ERROR(RunPrompt(shape));
      WL_RETURN_IF_ERROR(RunDecode(shape));
    }
    return absl::OkStatus();
  }
  int failures() const { return failures_; }

 private:
  void Report(const AttentionShape& shape, bool is_decode, double error, double stored,
              bool is_same) {
    const AttentionPath path = attention_.PathOf(
        is_decode, MakeKvLayout(shape.kv_type, shape.head_dim), shape.n_head, shape.n_head_kv);
    const bool is_good = error <= BoundOf(path) && stored <= 1 && is_same;
    failures_ += is_good ? 0 : 1;
    const char* const types[] = {"f32", "f16", "int8"};
    const std::string name = absl::StrCat(
        types[static_cast<int>(shape.kv_type)], " ", shape.n_head, "/", shape.n_head_kv, " x ",
        shape.head_dim, shape.window > 0 ? absl::StrCat(" window ", shape.window) : "",
        is_decode ? " decode" : " prompt");
    std::printf("%-34s %-8s %9.2g %9.2g  %s%s\n", name.c_str(), PathName(path), error, stored,
                is_same ? "same" : "DIFFER", is_good ? "" : "  FAIL");
    std::fflush(stdout);
  }

  // Two prompts in one step against the same in other pieces.
  absl::Status RunPrompt(const AttentionShape& shape) {
    WL_ASSIGN_OR_RETURN(AttentionRig rig, AttentionRig::Create(shape, AllContexts()));
    const int width = shape.n_head * shape.head_dim;
    const int longest = kContexts[kLong];
    std::vector<float> whole, again;
    WL_RETURN_IF_ERROR(
        rig.Run(attention_, {{kMiddle, 0, 200}, {kLong, 0, longest}}, false, &whole));
    WL_RETURN_IF_ERROR(rig.ReadCache());
    const float* const rows = whole.data() + 200 * width;  // of the long sequence
    RandomBits random(3);
    double error = 0, stored = 0;
    for (const int position : {0, 1, 62, 63, 64, 127, 128, 191, 192, 1000, 4095, 4096}) {
      const int head = static_cast<int>(random.Below(static_cast<uint32_t>(shape.n_head)));
      error = std::max(error, ErrorOf(rig, rows + position * width, kLong, position, head));
      stored = std::max(stored, StoredError(rig, kLong, position));
    }
    for (const int position : {0, 100, 199}) {
      error = std::max(error, ErrorOf(rig, whole.data() + position * width, kMiddle, position,
                                      shape.n_head - 1));
    }
    WL_ASSIGN_OR_RETURN(rig, AttentionRig::Create(shape, AllContexts()));
    bool is_same = true;
    int first = 0;
    for (const int end : {1, 38, 1038, 3086, longest}) {
      WL_RETURN_IF_ERROR(rig.Run(attention_, {{kLong, first, end - first}}, false, &again));
      is_same = is_same &&
                std::memcmp(again.data(), rows + first * width, again.size() * sizeof(float)) == 0;
      first = end;
    }
    Report(shape, false, error, stored, is_same);
    return absl::OkStatus();
  }

  // One row of each sequence in a step, against each alone.
  absl::Status RunDecode(const AttentionShape& shape) {
    WL_ASSIGN_OR_RETURN(AttentionRig rig, AttentionRig::Create(shape, AllContexts()));
    std::vector<SequenceRows> before, step;
    for (int i = 0; i <= kLong; ++i) {
      const int last = kContexts[i] - 1;
      if (last > 0) before.push_back({i, 0, last});
      step.push_back({i, last, 1});
    }
    std::vector<float> together, alone;
    WL_RETURN_IF_ERROR(rig.Run(attention_, before, false, nullptr));
    WL_RETURN_IF_ERROR(rig.Run(attention_, step, true, &together));
    WL_RETURN_IF_ERROR(rig.ReadCache());
    const int width = shape.n_head * shape.head_dim;
    double error = 0, stored = 0;
    bool is_same = true;
    for (const SequenceRows& row : step) {
      const float* const out = together.data() + row.sequence * width;
      for (const int head : {0, shape.n_head / 2, shape.n_head - 1}) {
        error = std::max(error, ErrorOf(rig, out, row.sequence, row.first_position, head));
      }
      stored = std::max(stored, StoredError(rig, row.sequence, row.first_position));
      WL_RETURN_IF_ERROR(rig.Run(attention_, {row}, true, &alone));
      is_same = is_same && std::memcmp(alone.data(), out, alone.size() * sizeof(float)) == 0;
    }
    Report(shape, true, error, stored, is_same);
    return absl::OkStatus();
  }

  PagedAttention attention_;
  int failures_ = 0;
};

absl::StatusOr<int> Main(bool is_bench) {
  WL_ASSIGN_OR_RETURN(const Device device, Device::Open(0));
  WL_RETURN_IF_ERROR(device.MakeCurrent());
  WL_ASSIGN_OR_RETURN(PagedAttention attention, PagedAttention::Create(device));
  if (is_bench) {
    WL_RETURN_IF_ERROR(BenchAttention(attention));
    return 0;
  }
  Check check(std::move(attention));
  WL_RETURN_IF_ERROR(check.Run());
  std::printf("%d failures\n", check.failures());
  return check.failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace warpline::cuda

int main(int argc, char** argv) {
  if (const absl::StatusOr<int> count = warpline::cuda::Device::Count(); !count.ok()) {
    std::printf("skipped: %s\n", std::string(count.status().message()).c_str());
    return 77;
  }
  const absl::StatusOr<int> result =
      warpline::cuda::Main(argc > 1 && std::strcmp(argv[1], "--bench") == 0);
  if (!result.ok()) std::fprintf(stderr, "%s\n", std::string(result.status().message()).c_str());
  return result.ok() ? *result : 1;
}
