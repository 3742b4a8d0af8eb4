#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/gguf.h"
#include "model/gguf_test_file.h"

namespace warpline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Three shards: metadata alone, then a tensor each.
class ShardTest : public testing::Test {
 protected:
  ShardTest() {
    for (int i = 0; i < 3; ++i) {
      TestGguf& shard = shards_[i];
      if (i == 0) shard.Set("general.architecture", GgufString("llama"));
      shard.Set("split.no", GgufU16(static_cast<uint16_t>(i)));
      shard.Set("split.count", GgufU16(3));
      shard.Set("split.tensors.count", GgufI32(2));
      if (i > 0)
        shard.AddTensor(absl::StrCat("t", i), {4}).data =
            std::string(16, static_cast<char>('0' + i));
    }
  }
  static std::string Name(int shard) { return absl::StrCat("m-0000", shard + 1, "-of-00003.gguf"); }
  void WriteAll() {
    for (int i = 0; i < 3; ++i) folder_.Write(Name(i), shards_[i].Build());
  }
  absl::Status Open() {
    WriteAll();
    return GgufFile::Open(folder_.Path(Name(0))).status();
  }

  TestFolder folder_;
  TestGguf shards_[3];
};

TEST_F(ShardTest, JoinsTheShards) {
  WriteAll();
  const auto file = GgufFile::Open(folder_.Path(Name(0)));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->shard_count(), 3);
  ASSERT_THAT((*file)->tensors(), SizeIs(2));
  EXPECT_EQ((*file)->FindTensor("t2")->shard, 2);
  EXPECT_THAT((*file)->Data(*(*file)->FindTensor("t2")), testing::Each('2'));
  EXPECT_EQ((*file)->total_file_bytes(),
            shards_[0].Build().size() + shards_[1].Build().size() + shards_[2].Build().size());
}

TEST_F(ShardTest, NamesTheMissingShard) {
  WriteAll();
  std::filesystem::remove(folder_.Path(Name(1)));
  const absl::Status status = GgufFile::Open(folder_.Path(Name(0))).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("shard 2 of 3"), HasSubstr("m-00002-of-00003.gguf")));
}

TEST_F(ShardTest, SaysToStartFromTheFirstShard) {
  WriteAll();
  const absl::Status status = GgufFile::Open(folder_.Path(Name(1))).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("shard 2 of 3"), HasSubstr("start from shard 1 of 3"),
                    HasSubstr("m-00001-of-00003.gguf")));
}

TEST_F(ShardTest, RefusesANameThatDoesNotFit) {
  WriteAll();
  const std::string bytes = shards_[0].Build();
  EXPECT_THAT(Message(GgufFile::Open(folder_.Write("plain.gguf", bytes)).status()),
              AllOf(HasSubstr("split.count is 3"), HasSubstr("-00001-of-00003.gguf")));
  EXPECT_THAT(Message(GgufFile::Open(folder_.Write("m-00001-of-00004.gguf", bytes)).status()),
              AllOf(HasSubstr("split.count is 3"), HasSubstr("the file name says 4")));
  EXPECT_THAT(Message(GgufFile::Open(folder_.Write("m-00003-of-00003.gguf", bytes)).status()),
              HasSubstr("start from shard 1 of 3"));
}

TEST_F(ShardTest, RefusesShardsThatDoNotBelongTogether) {
  const TestGguf good[3] = {shards_[0], shards_[1], shards_[2]};
  const auto refusal = [&](const std::function<void()>& change) {
    std::copy(good, good + 3, shards_);
    change();
    const absl::Status status = Open();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return Message(status);
  };
  EXPECT_THAT(refusal([&] { shards_[2].Set("split.no", GgufU16(1)); }),
              AllOf(HasSubstr("m-00003-of-00003.gguf"), HasSubstr("split.no is u16 1, must be 2")));
  EXPECT_THAT(refusal([&] { shards_[1].Set("split.count", GgufU16(4)); }),
              HasSubstr("split.count is u16 4, must be 3"));
  EXPECT_THAT(refusal([&] { shards_[1].Remove("split.no"); }),
              HasSubstr("key split.no is missing"));
  EXPECT_THAT(refusal([&] { shards_[0].Remove("split.no"); }), HasSubstr("split.no is missing"));
  EXPECT_THAT(refusal([&] { shards_[0].Set("split.count", GgufI32(-1)); }),
              HasSubstr("split.count is i32 -1"));
  EXPECT_THAT(refusal([&] { shards_[0].Set("split.count", GgufU32(70000)); }),
              HasSubstr("u32 70000"));
  EXPECT_THAT(refusal([&] { shards_[0].Set("split.tensors.count", GgufI32(3)); }),
              AllOf(HasSubstr("split.tensors.count is i32 3"), HasSubstr("have 2 tensors")));
  EXPECT_THAT(
      refusal([&] { shards_[2].Tensor("t2").name = "t1"; }),
      AllOf(HasSubstr("tensor t1 occurs twice"), HasSubstr("shard 2"), HasSubstr("shard 3")));
  EXPECT_THAT(refusal([&] { shards_[1].Set("general.architecture", GgufString("qwen2")); }),
              AllOf(HasSubstr("another model"), HasSubstr("qwen2"), HasSubstr("llama")));
}

TEST(WholeFileTest, MayHaveAShardCountOfZeroOrOne) {
  const TestFolder folder;
  for (const uint16_t count : {0, 1}) {
    TestGguf made;
    made.Set("split.count", GgufU16(count));
    EXPECT_TRUE(GgufFile::Open(folder.Write("model.gguf", made.Build())).ok());
  }
}

TEST_F(ShardTest, RefusesShardsJoinedByConcatenation) {
  const std::string joined = shards_[0].Build() + shards_[1].Build() + shards_[2].Build();
  const absl::Status status = GgufFile::Open(folder_.Write(Name(0), joined)).status();
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("joined into one file"), HasSubstr("start from shard 1")));
}

}  // namespace
}  // namespace warpline
