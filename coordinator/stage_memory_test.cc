#include "coordinator/stage_memory.h"

#include <gtest/gtest.h>

namespace warpline {
namespace {

constexpr int64_t kIdle = 6'100'000;
// A stack and a heap; decoded weights of two matrices, 48 columns of 32 values more each; products
// of 64 rows and 48 columns, twice.
constexpr int64_t kThread = 36 * 1024 + 2 * (640 * 1024 + 48 * 32 * 4) + 2 * 64 * 48 * 4;

// Two DeltaNet layers, then dense attention, then sparse attention.
ModelSpec HybridModel() {
  ModelSpec spec;
  spec.architecture = Architecture::kQwen4Exp;
  spec.n_layer = 4;
  spec.n_embd = spec.residual_width = 64;
  spec.n_vocab = 100;
  spec.head_dim = 24;
  spec.delta_net = {.conv_kernel = 4, .head_dim = 16, .n_head_key = 2, .n_head_value = 6};
  spec.indexer = {.n_head = 4, .head_dim = 32, .token_budget = 512};
  spec.ple.layer = 1;
  spec.ple.ngram_size = 3;
  spec.ple.heads_per_ngram = 2;
  spec.ple.row_count = 10000;
  spec.layers = {{.kind = LayerKind::kDeltaNet, .n_ff = 96},
                 {.kind = LayerKind::kDeltaNet, .n_ff = 96},
                 {.n_head = 4, .n_head_kv = 2, .n_ff = 96},
                 {.n_head = 4, .n_head_kv = 2, .n_ff = 96, .compress_ratio = 4}};
  return spec;
}

StageMemoryArgs ArgsFor(LayerRange layers) {
  return {.layers = layers,
          .weight_bytes = 4 << 20,
          .page_count = 10,
          .slot_count = 2,
          .context = 4096,
          .step_rows = 100,
          .thread_count = 3,
          .header_bytes = 1000,
          .ngrams = {.cache_bytes = 2'000'000, .table_bytes = 10000 * 160}};
}

TEST(StageMemoryTest, AProcessIsAWorkerTheHeaderAndThreads) {
  // And what 4 MiB of weights leave of a huge page.
  const StageMemory memory = MemoryOfStage(HybridModel(), ArgsFor({0, 1}));
  EXPECT_EQ(memory.weights, 4 << 20);
  EXPECT_EQ(memory.process, kIdle + (1 << 20) + 2 * 1000 + 3 * kThread);
  EXPECT_EQ(memory.ngrams, 0) << "another stage has the layer of the table";
  EXPECT_EQ(memory.sum(), memory.weights + memory.caches + memory.step + memory.process);
}

TEST(StageMemoryTest, TheLastHugePageOfABlockOfWeightsIsHalfEmpty) {
  const auto process = [](int64_t weight_bytes) {
    StageMemoryArgs args = ArgsFor({0, 1});
    args.weight_bytes = weight_bytes;
    return MemoryOfStage(HybridModel(), args).process;
  };
  constexpr int64_t kMiB = 1 << 20;
  const int64_t without = kIdle + 2 * 1000 + 3 * kThread;
  EXPECT_EQ(process(1000), without + 2 * kMiB - 1000) << "weights of less than a page fill one";
  EXPECT_EQ(process(32 * kMiB), without + kMiB);
  EXPECT_EQ(process(100 * kMiB), without + 4 * kMiB);
}

TEST(StageMemoryTest, EveryThreadHasRoomForAttention) {
  const ModelSpec spec = HybridModel();
  // Keys and values of 64 tokens; 96 rows with 64 scores, 4 numbers and a sum. Heads of 24 take 32.
  constexpr int64_t kTile = (2 * 64 * 32 + 96 * (64 + 4 + 32)) * 4;
  EXPECT_EQ(MemoryOfStage(spec, ArgsFor({2, 3})).process,
            kIdle + (1 << 20) + 2 * 1000 + 3 * (kThread + kTile));
  // 16 rows score 1,024 blocks, 64 at a time; twice 128 blocks with their scores are sorted.
  constexpr int64_t kScores = (16 * 1024 + 16 * 64) * 4 + 2 * 128 * 8;
  EXPECT_EQ(MemoryOfStage(spec, ArgsFor({2, 4})).process,
            kIdle + (1 << 20) + 2 * 1000 + 3 * (kThread + kTile + kScores));
  StageMemoryArgs dense = ArgsFor({2, 4});
  dense.context = 512;  // as many as the budget
  EXPECT_EQ(MemoryOfStage(spec, dense).process,
            kIdle + (1 << 20) + 2 * 1000 + 3 * (kThread + kTile));
}

TEST(StageMemoryTest, ATableThatFitsIsCopied) {
  const ModelSpec spec = HybridModel();
  // A token has four rows; each step has a list of them.
  constexpr int64_t kLists = 100 * 4 * 8;
  EXPECT_EQ(MemoryOfStage(spec, ArgsFor({1, 2})).ngrams, 1'600'000 + kLists);
  StageMemoryArgs args = ArgsFor({0, 4});
  args.ngrams.cache_bytes = 0;
  args.ngrams.io = "ram";
  EXPECT_EQ(MemoryOfStage(spec, args).ngrams, 1'600'000 + kLists);
}

TEST(StageMemoryTest, ATableOnDiskHasACacheAndRowsUnderWay) {
  const ModelSpec spec = HybridModel();
  constexpr int64_t kLists = 100 * 4 * 8;
  constexpr int64_t kBatches = 3 * (100 * 4 * 160 + kLists);
  constexpr int64_t kReads = 2 * 128 * 8192;  // two readers, 128 reads of two blocks each
  StageMemoryArgs args = ArgsFor({1, 2});
  args.ngrams.cache_bytes = 1'000'000;
  EXPECT_EQ(MemoryOfStage(spec, args).ngrams, 1'000'000 + kLists + kBatches + kReads);
  args.ngrams.io = "mmap";
  EXPECT_EQ(MemoryOfStage(spec, args).ngrams, 1'000'000 + kLists + kBatches);
  // No cache grows beyond the table's rows and what it takes to find them.
  args.ngrams.cache_bytes = int64_t{1} << 30;
  EXPECT_EQ(MemoryOfStage(spec, args).ngrams, 10000 * (160 + 56) + kLists + kBatches);
}

}  // namespace
}  // namespace warpline
