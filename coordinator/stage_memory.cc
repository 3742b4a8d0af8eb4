#include "coordinator/stage_memory.h"

#include <algorithm>

#include "model/allocated_bytes.h"
#include "model/row_widths.h"
#include "model/state_bytes.h"

namespace warpline {
namespace {

constexpr int64_t kFloat = 4;  // bytes
// Measured: a worker that serves a model of next to no size has 2.1 MB of its own, and a share of
// 4 MB in the code that all programs of a machine map together.
constexpr int64_t kIdleBytes = 6'100'000;
// The lists of a file's header take about twice their stored size in memory.
constexpr int64_t kHeaderCopies = 2;
constexpr int64_t kStackBytes = 36 << 10;  // of a compute thread, and its heap: measured
constexpr int64_t kPanelBytes = 2 * (640 << 10) + 2 * 48 * 32 * kFloat;  // decoded weights
constexpr int64_t kProductBytes = 2 * 64 * 48 * kFloat;                  // of a panel with rows
constexpr int64_t kTileRows = 96;    // pairs of row and head in one tile of attention
constexpr int64_t kTileTokens = 64;  // that they meet at a time
constexpr int64_t kScoredRows = 16;  // of an indexer, together
constexpr int64_t kCandidateBytes = 8;

constexpr int64_t kCachedRowBytes = 56;  // to find a row of the n-gram table again
constexpr int64_t kBatches = 3;          // the rows of a step, and of two steps ahead
constexpr int64_t kReaders = 2;          // one of them measures
constexpr int64_t kReadsInFlight = 128;
constexpr int64_t kDiskBlock = 4096;

int64_t AttentionBytes(int64_t head_dim) {
  const int64_t padded = (head_dim + 15) / 16 * 16;
  return (2 * kTileTokens * padded + kTileRows * (kTileTokens + 4 + padded)) * kFloat;
}

// Matrices lie in blocks of 32 MiB, larger ones in blocks of their own: of the last huge page of a
// block one half is empty, on average.
int64_t WeightSlack(int64_t weight_bytes) {
  constexpr int64_t kBlockBytes = int64_t{32} << 20;
  if (weight_bytes < kHugePageBytes) return kHugePageBytes - weight_bytes;
  return (weight_bytes + kBlockBytes - 1) / kBlockBytes * (kHugePageBytes / 2);
}

// Working room of one compute thread.
int64_t ThreadBytes(const ModelSpec& spec, LayerRange layers, int64_t context) {
  bool attends = false;
  int64_t score_bytes = 0;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    const LayerSpec& shape = spec.layers[static_cast<size_t>(layer)];
    attends |= shape.kind != LayerKind::kDeltaNet;
    const int64_t ratio = shape.compress_ratio;
    if (ratio == 0 || context <= spec.indexer.token_budget) continue;
    score_bytes = std::max(score_bytes, AllocatedBytes(kScoredRows * (context / ratio) * kFloat) +
                                            kScoredRows * kTileTokens * kFloat +
                                            2 * MostBlocks(spec, layer, context) * kCandidateBytes);
  }
  return kStackBytes + kPanelBytes + kProductBytes + (attends ? AttentionBytes(spec.head_dim) : 0) +
         score_bytes;
}

int64_t NgramBytes(const ModelSpec& spec, const NgramTableUse& use, int64_t step_rows) {
  const PleSpec& ple = spec.ple;
  const int64_t wanted_rows = step_rows * ple.head_count();
  const int64_t list_bytes = wanted_rows * static_cast<int64_t>(sizeof(int64_t));
  const bool fits = use.table_bytes <= use.cache_bytes;
  if (use.io == "ram" || (use.io == "auto" && fits)) return use.table_bytes + list_bytes;
  const int64_t row_bytes = use.table_bytes / std::max<int64_t>(1, ple.row_count);
  const int64_t cache =
      std::min(use.cache_bytes, use.table_bytes + ple.row_count * kCachedRowBytes);
  const int64_t batches = kBatches * (wanted_rows * row_bytes + list_bytes);
  const int64_t block_bytes =
      use.io == "mmap" ? 0 : kReaders * kReadsInFlight * (row_bytes / kDiskBlock + 2) * kDiskBlock;
  return cache + list_bytes + batches + block_bytes;
}

}  // namespace

void StageMemory::Add(const StageMemory& other) {
  weights += other.weights;
  caches += other.caches;
  step += other.step;
  process += other.process;
  ngrams += other.ngrams;
}

StageMemory MemoryOfStage(const ModelSpec& spec, const StageMemoryArgs& args) {
  StageMemory memory;
  memory.weights = args.weight_bytes;
  memory.caches =
      CacheBytesOf(spec, args.layers, FormatOf(args.kv_type), args.page_count, args.slot_count);
  memory.step = StepBytesOf(spec, args.layers, args.step_rows, args.context);
  memory.process = kIdleBytes + WeightSlack(args.weight_bytes) + kHeaderCopies * args.header_bytes +
                   args.thread_count * ThreadBytes(spec, args.layers, args.context);
  const int ple_layer = spec.ple.layer;
  if (spec.ple.present() && args.layers.begin <= ple_layer && ple_layer < args.layers.end) {
    memory.ngrams = NgramBytes(spec, args.ngrams, args.step_rows);
  }
  return memory;
}

}  // namespace warpline
