// Rows per second of each way to read an n-gram table, on a file of random bytes that it makes.
//
//   ple_bench FILE GIB [ROUNDS]
//
// The page cache of the file is emptied before each round, so its figures can be put beside those
// of `fio --rw=randread --direct=1 --bs=4k` on the same disk.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "worker/ple/mode_policy.h"
#include "worker/ple/ngram_reader.h"
#include "worker/ple/random_reader.h"

namespace warpline {
namespace {

constexpr int kRowWidth = 160;
constexpr uint64_t kOffset = 1234592;  // of the table: not aligned to anything
constexpr int kBatchRows = 512 * 16;   // a prompt chunk
constexpr int kBatches = 8;

bool MakeFile(const char* path, uint64_t bytes) {
  const UniqueFd fd(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return false;
  if (static_cast<uint64_t>(lseek(fd.get(), 0, SEEK_END)) == bytes) return true;
  if (ftruncate(fd.get(), 0) != 0) return false;
  std::mt19937_64 random(1);
  std::vector<uint64_t> block(1 << 20);
  for (uint64_t done = 0; done < bytes; done += block.size() * sizeof(uint64_t)) {
    for (uint64_t& word : block) word = random();
    const uint64_t count = std::min<uint64_t>(bytes - done, block.size() * sizeof(uint64_t));
    if (write(fd.get(), block.data(), count) != static_cast<ssize_t>(count)) return false;
  }
  return fsync(fd.get()) == 0;
}

void EmptyPageCache(const NgramTable& table) {
  const UniqueFd fd(open(table.path.c_str(), O_RDONLY | O_CLOEXEC));
  posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
}

std::vector<int64_t> RandomRows(const NgramTable& table, std::mt19937_64& random) {
  std::uniform_int_distribution<int64_t> any_row(0, table.row_count - 1);
  std::vector<int64_t> rows(kBatchRows);
  for (int64_t& row : rows) row = any_row(random);
  return rows;
}

// Rows per second of whole Fetches, each batch told of while the one before is taken, as the
// executor does; 0 after a failure.
double Round(const NgramTable& table, NgramReader& reader, std::mt19937_64& random) {
  EmptyPageCache(table);
  std::vector<std::vector<int64_t>> batches;
  for (int i = 0; i < kBatches; ++i) batches.push_back(RandomRows(table, random));
  std::vector<float> out(size_t{kBatchRows} * kRowWidth);
  const SteadyTime begin = Now();
  reader.Prefetch(batches[0]);
  for (int i = 0; i < kBatches; ++i) {
    if (i + 1 < kBatches) reader.Prefetch(batches[i + 1]);
    if (const absl::Status status = reader.Fetch(batches[i], absl::MakeSpan(out)); !status.ok()) {
      std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      return 0;
    }
  }
  return kBatches * kBatchRows / SecondsSince(begin);
}

int Main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: ple_bench FILE GIB [ROUNDS]\n");
    return 2;
  }
  const auto bytes = static_cast<uint64_t>(std::atof(argv[2]) * (uint64_t{1} << 30));
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  NgramTable table{.path = argv[1],
                   .offset = kOffset,
                   .file_bytes = bytes,
                   .type = QuantType::kQ4_0,
                   .row_width = kRowWidth};
  table.row_count = static_cast<int64_t>((bytes - kOffset) / table.row_bytes());
  if (rounds < 1 || bytes <= 2 * kOffset || !MakeFile(argv[1], bytes)) {
    std::fprintf(stderr, "%s cannot be made\n", argv[1]);
    return 1;
  }
  const PleIo modes[] = {PleIo::kDirect, PleIo::kMmap};
  std::vector<std::unique_ptr<NgramReader>> readers;
  for (const PleIo mode : modes) {
    absl::StatusOr<std::unique_ptr<NgramReader>> reader =
        OpenNgramReader(table, {.io = mode, .cache_bytes = 0});
    if (!reader.ok()) {
      std::fprintf(stderr, "%s\n", std::string(reader.status().message()).c_str());
      return 1;
    }
    readers.push_back(*std::move(reader));
  }
  std::mt19937_64 random(std::random_device{}());
  std::vector<std::vector<double>> rates(readers.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < readers.size(); ++i) {
      rates[i].push_back(Round(table, *readers[i], random));
    }
  }
  for (size_t i = 0; i < readers.size(); ++i) {
    std::printf("%-6s %9.0f rows/s, median of %d rounds, %d rows of %d bytes each\n",
                kPleIoNames[static_cast<int>(modes[i])], Median(rates[i]), rounds,
                kBatches * kBatchRows, static_cast<int>(table.row_bytes()));
  }
  return 0;
}

}  // namespace
}  // namespace warpline

int main(int argc, char** argv) { return warpline::Main(argc, argv); }
