// Drives a fuzz target without a fuzzer: each seed file as it is, then mutations of it with fixed
// random seeds. Usage: TARGET FIRST_BYTES ROUNDS FILE.. ; most changes fall into the first
// FIRST_BYTES of a file, its header.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr double kMostSeconds = 5;

// Values at which parsers tend to break.
constexpr uint64_t kOddValues[] = {0,       1,          4,          7,           9,
                                   255,     65535,      65536,      0x7FFFFFFF,  0x80000000,
                                   ~0ull,   ~0ull >> 1, 1ull << 63, ~0ull << 32, 0x7FF0000000000000,
                                   1 << 30, 0x7F800000, 0xFFC00000};

class Mutator {
 public:
  Mutator(uint64_t seed, size_t first_bytes) : random_(seed), first_bytes_(first_bytes) {}

  void Mutate(std::string& bytes) {
    const uint64_t changes = 1 + Below(3);
    for (uint64_t i = 0; i < changes && !bytes.empty(); ++i) ChangeOnce(bytes);
  }

 private:
  uint64_t Below(uint64_t limit) { return random_() % limit; }
  size_t Place(const std::string& bytes) {
    const bool anywhere = Below(16) == 0;
    return Below(anywhere ? bytes.size() : std::min(first_bytes_, bytes.size()));
  }
  void ChangeOnce(std::string& bytes) {
    const size_t place = Place(bytes);
    const size_t rest = bytes.size() - place;
    switch (Below(8)) {
      case 0:
        bytes[place] = static_cast<char>(bytes[place] ^ (1 << Below(8)));
        break;
      case 1:
        bytes[place] = static_cast<char>(random_());
        break;
      case 2:
        bytes.resize(place);
        break;
      case 3:
        bytes.erase(place, Below(64));
        break;
      case 4:
        bytes.insert(place, bytes.substr(Place(bytes), Below(64)));
        break;
      default: {
        const uint64_t value = kOddValues[Below(std::size(kOddValues))] + Below(3) - 1;
        const size_t widths[] = {1, 4, 4, 8, 8};
        std::memcpy(&bytes[place], &value, std::min(rest, widths[Below(std::size(widths))]));
      }
    }
  }

  std::mt19937_64 random_;
  const size_t first_bytes_;
};

void Run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s FIRST_BYTES ROUNDS FILE..\n", argv[0]);
    return 2;
  }
  const size_t first_bytes = std::max(1ul, std::strtoul(argv[1], nullptr, 10));
  const uint64_t rounds = std::strtoul(argv[2], nullptr, 10);
  std::vector<std::string> seeds;
  for (int i = 3; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (seeds.back().empty()) {
      std::fprintf(stderr, "cannot read %s\n", argv[i]);
      return 2;
    }
    Run(seeds.back());
  }
  const auto begin = std::chrono::steady_clock::now();
  uint64_t round = 0;
  for (; round < rounds; ++round) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() >
        kMostSeconds)
      break;
    std::string bytes = seeds[round % seeds.size()];
    Mutator(round, first_bytes).Mutate(bytes);
    Run(bytes);
  }
  std::printf("%zu seeds, %llu mutations\n", seeds.size(), static_cast<unsigned long long>(round));
  return 0;
}
