#include "kernels/cuda/kv_layout.h"

#include <algorithm>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warpline::cuda {
namespace {

using ::testing::Le;

struct Kind {
  KvType type;
  int head_dim;
};

std::vector<Kind> AllKinds() {
  std::vector<Kind> kinds;
  for (const int head_dim : {8, 16, 24, 32, 64, 80, 96, 128, 192, 256}) {
    for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kQ8_0}) {
      kinds.push_back({type, head_dim});
    }
  }
  kinds.push_back({KvType::kF32, 5});
  kinds.push_back({KvType::kF16, 5});
  return kinds;
}

TEST(KvLayoutTest, GivesEveryValueAndScaleBytesOfItsOwnInsideTheBlock) {
  for (const Kind& kind : AllKinds()) {
    const KvLayout layout = MakeKvLayout(kind.type, kind.head_dim);
    std::set<int> used;
    int last = 0;
    for (int token = 0; token < kPageTokens; ++token) {
      for (int dim = 0; dim < kind.head_dim; ++dim) {
        const int offset = ValueOffset(layout, token, dim);
        for (int i = 0; i < layout.value_bytes; ++i) {
          ASSERT_TRUE(used.insert(offset + i).second) << kind.head_dim << " " << token;
        }
        last = std::max(last, offset + layout.value_bytes);
      }
      if (kind.type != KvType::kQ8_0) continue;
      for (int group = 0; group < kind.head_dim / layout.group; ++group) {
        const int offset = ScaleOffset(layout, token, group);
        ASSERT_TRUE(used.insert(offset).second);
        ASSERT_TRUE(used.insert(offset + 1).second);
        last = std::max(last, offset + 2);
      }
    }
    EXPECT_THAT(last, Le(layout.block_bytes));
    EXPECT_EQ(layout.block_bytes % 128, 0);  // bulk copies want blocks aligned to 16 bytes
  }
}

// Kernels read and write runs of 16 bytes at once.
TEST(KvLayoutTest, KeepsTheSixteenBytesOfAPieceTogether) {
  for (const Kind& kind : AllKinds()) {
    const KvLayout layout = MakeKvLayout(kind.type, kind.head_dim);
    const int run = 16 / layout.value_bytes;
    for (int token = 0; token < kPageTokens; ++token) {
      for (int dim = 0; dim < kind.head_dim; ++dim) {
        EXPECT_EQ(ValueOffset(layout, token, dim),
                  ValueOffset(layout, token, dim / run * run) + dim % run * layout.value_bytes);
      }
    }
  }
}

// What the matrix units are told: tiles of 64 halves, rows of 128 bytes, eight rows 1,024 bytes
// apart, piece p of row r at p XOR r.
TEST(KvLayoutTest, PutsHalvesWhereTheMatrixUnitsLookForThem) {
  for (const int head_dim : {64, 128, 256}) {
    const KvLayout layout = MakeKvLayout(KvType::kF16, head_dim);
    EXPECT_EQ(layout.block_bytes, 2 * kPageTokens * head_dim);
    for (int token = 0; token < kPageTokens; ++token) {
      for (int dim = 0; dim < head_dim; ++dim) {
        const int piece = (dim % 64 / 8) ^ (token % 8);
        EXPECT_EQ(ValueOffset(layout, token, dim),
                  dim / 64 * 8192 + token / 8 * 1024 + token % 8 * 128 + piece * 16 + dim % 8 * 2);
      }
    }
  }
}

TEST(KvLayoutTest, LaysKeysBeforeValuesOfEachHeadOfEachPage) {
  KvView cache;
  cache.layout = MakeKvLayout(KvType::kF16, 64);
  cache.n_head_kv = 3;
  EXPECT_EQ(BlockOffset(cache, 0, 0, false), 0);
  EXPECT_EQ(BlockOffset(cache, 0, 0, true), 8192);
  EXPECT_EQ(BlockOffset(cache, 0, 2, false), 4 * 8192);
  EXPECT_EQ(BlockOffset(cache, 1, 0, false), 6 * 8192);
  EXPECT_EQ(BlockOffset(cache, 1000000, 0, false), int64_t{6000000} * 8192);
}

TEST(KvLayoutTest, SharesOneScaleAmongAsManyInt8ValuesAsTheHeadAllows) {
  EXPECT_EQ(MakeKvLayout(KvType::kQ8_0, 128).group, 32);
  EXPECT_EQ(MakeKvLayout(KvType::kQ8_0, 80).group, 16);
  EXPECT_EQ(MakeKvLayout(KvType::kQ8_0, 24).group, 8);
}

}  // namespace
}  // namespace warpline::cuda
