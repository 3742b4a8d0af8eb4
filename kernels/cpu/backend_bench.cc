// Times the op cases and prints GFLOP/s and GB/s, beside the peak of this machine measured in the
// same run. Usage: backend_bench [threads] [instruction set] [text that the case's name contains]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/op_cases.h"
#include "kernels/cpu/simd_kernels.h"

namespace warpline {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kSecondsPerCase = 0.2;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Products of one tile that stays in the first-level cache, on every thread at once.
double PeakGflops(InstructionSet set, int threads) {
  constexpr int64_t kWidth = 480, kRows = 4, kColumns = 6;
  constexpr int kRepeats = 200000;
  std::vector<std::thread> workers;
  const auto start = Clock::now();
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([set] {
      const std::vector<float> x(kRows * kWidth), w(kColumns * kWidth);
      std::vector<float> out(kRows * kColumns);
      const DotArgs args{.x = x.data(),
                         .x_stride = kWidth,
                         .rows = kRows,
                         .w = reinterpret_cast<const uint8_t*>(w.data()),
                         .w_stride_bytes = kWidth * 4,
                         .columns = kColumns,
                         .k = kWidth,
                         .out = out.data(),
                         .out_stride = kColumns};
      for (int i = 0; i < kRepeats; ++i) GetDotKernels(set).f32(args);
    });
  }
  for (std::thread& worker : workers) worker.join();
  return 2.0 * kWidth * kRows * kColumns * kRepeats * threads / SecondsSince(start) * 1e-9;
}

// The best of many runs; 0 when the case fails.
double BestSeconds(OpFixture& fixture, int64_t rows) {
  double best = 1e9;
  for (const auto start = Clock::now(); SecondsSince(start) < kSecondsPerCase;) {
    const auto run = Clock::now();
    if (const absl::Status status = fixture.Run(0, rows); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 0;
    }
    best = std::min(best, SecondsSince(run));
  }
  return best;
}

int Main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  const std::string set_name = argc > 2 ? argv[2] : "";
  const std::string filter = argc > 3 ? argv[3] : "";
  const auto set = DetectInstructionSet(set_name);
  auto backend = CreateCpuBackend({.thread_count = threads, .instruction_set = set_name});
  if (!set.ok() || !backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().ToString().c_str());
    return 2;
  }
  std::printf("%s\n", (*backend)->Describe().c_str());
  const int used = threads > 0 ? threads : static_cast<int>(std::thread::hardware_concurrency());
  std::printf("register tile in the first-level cache: %.0f GFLOP/s\n", PeakGflops(*set, used));
  for (const OpCase& op_case : BenchCases()) {
    const std::string name = CaseName(op_case);
    if (name.find(filter) == std::string::npos) continue;
    auto fixture = MakeFixture(**backend, op_case);
    const double seconds = fixture.ok() ? BestSeconds(**fixture, op_case.rows) : 0;
    if (seconds <= 0) {
      std::fprintf(stderr, "%s failed: %s\n", name.c_str(), fixture.status().ToString().c_str());
      return 1;
    }
    std::printf("%-64s %9.1f us %8.1f GFLOP/s %7.1f GB/s\n", name.c_str(), seconds * 1e6,
                (*fixture)->Flops() / seconds * 1e-9, (*fixture)->WeightBytes() / seconds * 1e-9);
  }
  return 0;
}

}  // namespace
}  // namespace warpline

int main(int argc, char** argv) { return warpline::Main(argc, argv); }
