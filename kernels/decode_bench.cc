// Measures the decoders: values a second of one core for each type, from L1/L2, scalar and SIMD,
// stored and multiplied.
//   decode_bench [type name]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/quant_decode.h"

namespace warpline {
namespace {

constexpr int64_t kRowValues = 4096;  // 16 KiB of f32

std::vector<uint8_t> RandomBlocks(QuantType type) {
  std::vector<uint8_t> blocks(static_cast<size_t>(RowBytes(type, kRowValues)));
  std::mt19937 random(1);
  for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random() & 0x3B);  // finite scales
  return blocks;
}

// Best of several short runs, in Gvalues/s.
template <typename Function>
double Measure(Function decode_row) {
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    int64_t rows = 0;
    double seconds = 0;
    while (seconds < 0.01) {
      for (int i = 0; i < 16; ++i) decode_row();
      rows += 16;
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    best = std::max(best, static_cast<double>(rows * kRowValues) / seconds * 1e-9);
  }
  return best;
}

void Bench(const QuantTypeInfo& info) {
  const std::vector<uint8_t> blocks = RandomBlocks(info.type);
  std::vector<float> out(kRowValues);
  std::printf("%-8s scalar %6.2f", info.name,
              Measure([&] { DequantizeRow(info.type, blocks.data(), kRowValues, out.data()); }));
  for (const char* name : {"avx2", "avx512"}) {
    const absl::StatusOr<InstructionSet> set = DetectInstructionSet(name);
    if (!set.ok()) continue;
    const DequantizeFunction decode = FastDequantizer(info.type, *set);
    std::printf("  %s %6.2f", name,
                Measure([&] { decode(blocks.data(), kRowValues, out.data()); }));
  }
  std::printf("  Gvalues/s\n");
}

}  // namespace
}  // namespace warpline

int main(int argc, char** argv) {
  for (const warpline::QuantTypeInfo& info : warpline::AllQuantTypes()) {
    if (!info.is_weight || (argc > 1 && std::strcmp(argv[1], info.name) != 0)) continue;
    warpline::Bench(info);
  }
  return 0;
}
