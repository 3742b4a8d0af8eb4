#include "kernels/cuda/layer_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/half_math.h"
#include "kernels/cuda/packed_layout.h"
#include "kernels/cuda/parity_cases.h"
#include "kernels/cuda/random_blocks.h"
#include "kernels/cuda/reference_product.h"

namespace warpline::cuda {
namespace {

constexpr int kWidth = 2048;
constexpr int kFf = 768;
constexpr int kSlots = 4;
constexpr float kHiddenScale = 1.0f / 16;  // a power of two; only rounding to half depends on it

template <typename T>
absl::StatusOr<DeviceBuffer> Upload(const std::vector<T>& values) {
  const size_t bytes = values.size() * sizeof(T);
  WL_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Create(static_cast<int64_t>(bytes)));
  WL_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpy(buffer.as(), values.data(), bytes, cudaMemcpyHostToDevice),
                 "copying operands to the device"));
  return buffer;
}

template <typename T>
absl::StatusOr<std::vector<T>> Download(const DeviceBuffer& buffer) {
  std::vector<T> values(static_cast<size_t>(buffer.bytes()) / sizeof(T));
  WL_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(values.data(), buffer.as(), values.size() * sizeof(T), cudaMemcpyDeviceToHost),
      "reading results"));
  return values;
}

// What the tokens are, and which experts they take.
struct Tokens {
  std::vector<uint16_t> halves;  // [tokens][kWidth]
  std::vector<float> floats;     // the same numbers
  std::vector<int32_t> expert_ids;
  std::vector<float> weights;
};

Tokens RandomLayerTokens(int count) {
  Tokens tokens;
  RandomBits random(21);
  for (int i = 0; i < count * kWidth; ++i) {
    const uint32_t half = HalfFromFloat(random.Normal());
    tokens.halves.push_back(static_cast<uint16_t>(half));
    tokens.floats.push_back(FloatFromHalf(half));
  }
  std::array<int32_t, kParityExperts> order;
  std::iota(order.begin(), order.end(), 0);
  for (int t = 0; t < count; ++t) {
    for (size_t s = 0; s < kSlots; ++s) {
      std::swap(order[s], order[s + random.Below(static_cast<uint32_t>(kParityExperts - s))]);
      tokens.expert_ids.push_back(order[s]);
      tokens.weights.push_back(0.05f + static_cast<float>(random.Below(1000)) / 2000);
    }
  }
  return tokens;
}

// The pairs by expert, each expert from a multiple of 8 on: not the device's routing, a plain sort.
struct HostRows {
  std::vector<int32_t> token;          // [rows]
  std::vector<int32_t> expert_of_row;  // [rows]; -1 in gaps
  std::vector<int32_t> row_of_pair;
};

HostRows SortPairs(const Tokens& tokens) {
  HostRows rows;
  rows.row_of_pair.assign(tokens.expert_ids.size(), -1);
  for (int32_t e = 0; e < kParityExperts; ++e) {
    for (size_t pair = 0; pair < tokens.expert_ids.size(); ++pair) {
      if (tokens.expert_ids[pair] != e) continue;
      rows.row_of_pair[pair] = static_cast<int32_t>(rows.token.size());
      rows.token.push_back(static_cast<int32_t>(pair / kSlots));
      rows.expert_of_row.push_back(e);
    }
    while (rows.token.size() % kTileRows != 0) {
      rows.token.push_back(0);
      rows.expert_of_row.push_back(-1);
    }
  }
  return rows;
}

// One matrix of all experts in every form.
struct LayerMatrix {
  ParityWeights host;
  RawExperts raw;
  float factor = 1;
};

LayerMatrix MakeMatrix(QuantType type, int rows, int k, uint64_t seed) {
  LayerMatrix matrix;
  matrix.host = RandomWeights(type, {rows, k, false}, seed);
  matrix.raw = {.type = type,
                .experts = kParityExperts,
                .rows = rows,
                .k = k,
                .blocks = matrix.host.blocks.data(),
                .expert_bytes = RowBytes(type, int64_t{rows} * k)};
  return matrix;
}

class LayerCheck {
 public:
  LayerCheck(const ExpertKernels& kernels, const LayerCase& layer_case)
      : kernels_(kernels), case_(layer_case) {}

  absl::StatusOr<LayerResult> Run() {
    WL_ASSIGN_OR_RETURN(stream_, Stream::Create());
    WL_RETURN_IF_ERROR(MakeOperands());
    WL_ASSIGN_OR_RETURN(const std::vector<double> reference, Reference());
    return Compare(reference);
  }

 private:
  absl::Status MakeOperands() {
    gate_ = MakeMatrix(case_.gate, kFf, kWidth, 31);
    up_ = MakeMatrix(case_.up, kFf, kWidth, 32);
    down_ = MakeMatrix(case_.down, kWidth, kFf, 33);
    if (case_.gate == case_.up) {
      WL_ASSIGN_OR_RETURN(weights_.gate_up, PackGateUp(gate_.raw, up_.raw, stream_.get()));
      gate_.factor = up_.factor = 1 / weights_.gate_up.weight_scale;
    } else {
      WL_ASSIGN_OR_RETURN(weights_.gate, PackExperts(gate_.raw, stream_.get()));
      WL_ASSIGN_OR_RETURN(weights_.up, PackExperts(up_.raw, stream_.get()));
      gate_.factor = 1 / weights_.gate.weight_scale;
      up_.factor = 1 / weights_.up.weight_scale;
    }
    WL_ASSIGN_OR_RETURN(weights_.down, PackExperts(down_.raw, stream_.get()));
    down_.factor = 1 / weights_.down.weight_scale;
    tokens_ = RandomLayerTokens(case_.tokens);
    rows_ = SortPairs(tokens_);
    return absl::OkStatus();
  }

  // Sums of one matrix in double; `x` are halves of `tokens` found through `ids`.
  absl::StatusOr<std::vector<double>> Sums(const LayerMatrix& matrix,
                                           const std::vector<uint16_t>& x,
                                           const std::vector<int32_t>& ids) {
    const int rows = static_cast<int>(ids.size());
    WL_ASSIGN_OR_RETURN(const DeviceBuffer values, Upload(matrix.host.values));
    WL_ASSIGN_OR_RETURN(const DeviceBuffer x_device, Upload(x));
    WL_ASSIGN_OR_RETURN(const DeviceBuffer ids_device, Upload(ids));
    WL_ASSIGN_OR_RETURN(const DeviceBuffer experts, Upload(rows_.expert_of_row));
    WL_ASSIGN_OR_RETURN(const DeviceBuffer sums,
                        DeviceBuffer::Create(int64_t{8} * rows * matrix.raw.rows));
    WL_RETURN_IF_ERROR(ReferenceProduct({.weights = values.as<float>(),
                                         .weight_factor = matrix.factor,
                                         .x = x_device.as<uint16_t>(),
                                         .ids = ids_device.as<int32_t>(),
                                         .expert_of_row = experts.as<int32_t>(),
                                         .rows = rows,
                                         .columns = matrix.raw.rows,
                                         .k = matrix.raw.k,
                                         .sums = sums.as<double>()},
                                        stream_.get()));
    WL_RETURN_IF_ERROR(stream_.Synchronize());
    return Download<double>(sums);
  }

  absl::StatusOr<std::vector<double>> Reference() {
    WL_ASSIGN_OR_RETURN(const std::vector<double> gate, Sums(gate_, tokens_.halves, rows_.token));
    WL_ASSIGN_OR_RETURN(const std::vector<double> up, Sums(up_, tokens_.halves, rows_.token));
    std::vector<uint16_t> hidden(gate.size());
    for (size_t i = 0; i < gate.size(); ++i) {
      const bool is_live = rows_.expert_of_row[i / kFf] >= 0;
      const double h = is_live ? gate[i] / (1 + std::exp(-gate[i])) * up[i] : 0;
      hidden[i] = static_cast<uint16_t>(HalfFromDouble(h * kHiddenScale));
    }
    std::vector<int32_t> own(rows_.token.size());
    std::iota(own.begin(), own.end(), 0);
    WL_ASSIGN_OR_RETURN(const std::vector<double> y, Sums(down_, hidden, own));
    std::vector<double> out(static_cast<size_t>(case_.tokens) * kWidth, 0);
    for (size_t pair = 0; pair < rows_.row_of_pair.size(); ++pair) {
      const size_t row = static_cast<size_t>(rows_.row_of_pair[pair]);
      for (size_t c = 0; c < kWidth; ++c) {
        out[pair / kSlots * kWidth + c] +=
            y[row * kWidth + c] / kHiddenScale * static_cast<double>(tokens_.weights[pair]);
      }
    }
    return out;
  }

  absl::StatusOr<LayerResult> Compare(const std::vector<double>& reference) {
    WL_ASSIGN_OR_RETURN(const std::unique_ptr<ExpertProduct> product,
                        ExpertProduct::Create(kernels_, {.experts = kParityExperts,
                                                         .slots = kSlots,
                                                         .n_embd = kWidth,
                                                         .n_ff = kFf,
                                                         .max_tokens = case_.tokens,
                                                         .policy = case_.policy}));
    WL_RETURN_IF_ERROR(product->Prepare(weights_));
    const bool is_half = case_.x_is_half || case_.kind == StepKind::kDecode;
    WL_ASSIGN_OR_RETURN(const DeviceBuffer x,
                        is_half ? Upload(tokens_.halves) : Upload(tokens_.floats));
    WL_ASSIGN_OR_RETURN(const DeviceBuffer ids, Upload(tokens_.expert_ids));
    WL_ASSIGN_OR_RETURN(const DeviceBuffer routing, Upload(tokens_.weights));
    WL_ASSIGN_OR_RETURN(const DeviceBuffer out,
                        DeviceBuffer::Create(int64_t{4} * case_.tokens * kWidth));
    const ExpertStep step = {.kind = case_.kind,
                             .x = x.as(),
                             .x_is_float = !is_half,
                             .expert_ids = ids.as<int32_t>(),
                             .weights = routing.as<float>(),
                             .tokens = case_.tokens,
                             .out = out.as<float>()};
    const auto run = [&] { return product->Run(weights_, step, stream_.get()); };
    WL_RETURN_IF_ERROR(run());
    WL_RETURN_IF_ERROR(stream_.Synchronize());
    WL_ASSIGN_OR_RETURN(const std::vector<float> first, Download<float>(out));
    WL_RETURN_IF_ERROR(CudaStatus(cudaMemset(out.as(), kGuardByte, first.size() * 4), "clearing"));
    if (case_.policy == Policy::kOff) {  // which cannot be captured
      WL_RETURN_IF_ERROR(run());
    } else {
      WL_ASSIGN_OR_RETURN(const Graph graph, Graph::Capture(stream_.get(), run));
      WL_RETURN_IF_ERROR(graph.Launch(stream_.get()));
      WL_RETURN_IF_ERROR(stream_.Synchronize());  // Before the graph is destroyed.
    }
    WL_RETURN_IF_ERROR(stream_.Synchronize());
    WL_ASSIGN_OR_RETURN(const std::vector<float> again, Download<float>(out));
    LayerResult result;
    result.is_repeatable = std::memcmp(first.data(), again.data(), first.size() * 4) == 0;
    for (size_t i = 0; i < first.size(); ++i) {
      const double error = std::fabs(first[i] - reference[i]);
      result.is_finite = result.is_finite && std::isfinite(first[i]);
      result.max_error = std::max(result.max_error, error);
      result.max_reference = std::max(result.max_reference, std::fabs(reference[i]));
      uint32_t bits;
      std::memcpy(&bits, &first[i], sizeof(bits));
      result.hash = result.hash * 0x9E3779B97F4A7C15ull + bits;
    }
    return result;
  }

  const ExpertKernels& kernels_;
  const LayerCase& case_;
  Stream stream_;
  LayerMatrix gate_;
  LayerMatrix up_;
  LayerMatrix down_;
  ExpertWeights weights_;
  Tokens tokens_;
  HostRows rows_;
};

}  // namespace

absl::StatusOr<LayerResult> CheckLayer(const ExpertKernels& kernels, const LayerCase& layer_case) {
  WL_RETURN_IF_ERROR(kernels.device().MakeCurrent());
  return LayerCheck(kernels, layer_case).Run();
}

}  // namespace warpline::cuda
