// Operands of the benchmark, and how a launch is timed.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "kernels/cuda/expert_kernels.h"
#include "kernels/cuda/packed_experts.h"
#include "kernels/cuda/raii.h"

namespace warpline::cuda {

constexpr int kBenchExperts = 128;
constexpr int kBenchSlots = 8;
constexpr int kBenchWidth = 2048;
constexpr int kBenchFf = 768;
constexpr int kBenchTokens = 8192;                       // at most
constexpr int kBenchPairs = kBenchTokens * kBenchSlots;  // at most

// Gate and up, and down, of one layer.
struct BenchLayer {
  PackedExperts gate_up;
  PackedExperts down;
};
// The same random blocks for every expert: speed does not depend on them, and the bytes lie apart.
absl::StatusOr<BenchLayer> MakeBenchLayer(QuantType type, cudaStream_t stream);
// A copy in memory of its own.
absl::StatusOr<BenchLayer> CopyLayer(const BenchLayer& layer, cudaStream_t stream);

// Activations and every buffer between the kernels of a layer, for up to kBenchPairs rows.
struct BenchBuffers {
  DeviceBuffer x;           // halves [kBenchTokens][kBenchWidth]
  DeviceBuffer expert_ids;  // [kBenchTokens][kBenchSlots]
  DeviceBuffer weights;     // floats, as expert_ids
  DeviceBuffer start;
  DeviceBuffer count;
  DeviceBuffer row_token;
  DeviceBuffer slot_row;
  DeviceBuffer row_weight;
  DeviceBuffer row_scale;
  DeviceBuffer bad_ids;
  DeviceBuffer scratch;
  DeviceBuffer x_tiles;
  DeviceBuffer h_tiles;  // also h rows of decode steps
  DeviceBuffer y;        // halves [rows][kBenchWidth]
  DeviceBuffer out;      // floats [kBenchTokens][kBenchWidth]
  int32_t row_groups = 0;

  static absl::StatusOr<BenchBuffers> Create();
};

// Which experts each token takes.
struct BenchRouting {
  std::vector<int32_t> expert_ids;  // [tokens][kBenchSlots]
  int tokens = 0;
};
// Exactly `rows` rows for every expert.
BenchRouting UniformRouting(int rows);
// kBenchSlots distinct experts for every token; `zipf` is the exponent of their frequencies, 0 for
// equal ones.
BenchRouting RandomRouting(int tokens, double zipf, uint64_t seed);

// Puts a routing into the buffers and sorts its rows. Waits.
absl::Status ApplyRouting(const BenchRouting& routing, const BenchBuffers& buffers,
                          cudaStream_t stream);

// Median of `runs` runs in microseconds, after three that do not count.
template <typename Enqueue>  // absl::Status()
absl::StatusOr<double> TimeUs(cudaStream_t stream, int runs, const Enqueue& enqueue) {
  WL_ASSIGN_OR_RETURN(const Event begin, Event::Create(Event::Use::kTime));
  WL_ASSIGN_OR_RETURN(const Event end, Event::Create(Event::Use::kTime));
  std::vector<double> times;
  for (int run = -3; run < runs; ++run) {
    WL_RETURN_IF_ERROR(begin.Record(stream));
    WL_RETURN_IF_ERROR(enqueue());
    WL_RETURN_IF_ERROR(end.Record(stream));
    WL_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(end.get()), "timing"));
    float milliseconds = 0;
    WL_RETURN_IF_ERROR(
        CudaStatus(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "timing"));
    if (run >= 0) times.push_back(milliseconds * 1e3);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace warpline::cuda
