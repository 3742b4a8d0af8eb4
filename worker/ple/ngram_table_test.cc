#include <gtest/gtest.h>

#include "model/gguf_test_file.h"
#include "worker/ple/ngram_reader.h"
#include "worker/ple/ngram_source.h"

namespace warpline {
namespace {

TEST(NgramTableTest, LiesInItsShard) {
  // A row of one Q8_0 block each: scale 2.0 (half float 0x4000) and 32 equal bytes.
  TestGguf second;
  second.keys = {
      {"split.no", GgufU16(1)}, {"split.count", GgufU16(2)}, {"split.tensors.count", GgufI32(3)}};
  second.AddTensor("other", {3});
  TestTensor& tensor = second.AddTensor("per_layer_token_embd.weight", {32, 4}, QuantType::kQ8_0);
  tensor.data.clear();
  for (char row = 0; row < 4; ++row)
    tensor.data += Bytes(uint16_t{0x4000}) + std::string(32, row + 1);
  TestGguf first;
  first.keys = {{"general.architecture", GgufString("test")},
                {"split.no", GgufU16(0)},
                {"split.count", GgufU16(2)},
                {"split.tensors.count", GgufI32(3)}};
  first.AddTensor("first", {32});
  const TestFolder folder;
  const std::string path = folder.Write("m-00001-of-00002.gguf", first.Build());
  folder.Write("m-00002-of-00002.gguf", second.Build());

  const absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<NgramTable> table =
      FindNgramTable(**file, PleSpec{.row_width = 32, .row_count = 4});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->path, folder.Path("m-00002-of-00002.gguf"));
  EXPECT_EQ(table->file_bytes, second.Build().size());
  for (const PleIo io : {PleIo::kAuto, PleIo::kMmap, PleIo::kRam}) {
    const absl::StatusOr<std::unique_ptr<NgramReader>> reader =
        OpenNgramReader(*table, {.io = io, .cache_bytes = 0});
    ASSERT_TRUE(reader.ok()) << reader.status();
    std::vector<float> out(2 * 32);
    ASSERT_TRUE((*reader)->Fetch({3, 1}, absl::MakeSpan(out)).ok());
    for (int i = 0; i < 32; ++i) {
      EXPECT_EQ(out[i], 8);
      EXPECT_EQ(out[32 + i], 4);
    }
  }
}

TEST(NgramSourceTest, OpensAReaderForTheStageWithTheLayerAndKeepsIt) {
  TestGguf parts;
  parts.keys = {{"general.architecture", GgufString("test")}};
  parts.AddTensor("per_layer_token_embd.weight", {32, 4});
  const TestFolder folder;
  const absl::StatusOr<std::unique_ptr<GgufFile>> file =
      GgufFile::Open(folder.Write("m.gguf", parts.Build()));
  ASSERT_TRUE(file.ok()) << file.status();
  NgramSource source(**file, {.layer = 3, .row_width = 32, .row_count = 4}, {});
  EXPECT_EQ(*source.ReaderFor({.begin = 0, .end = 3}), nullptr);
  NgramReader* const reader = *source.ReaderFor({.begin = 3, .end = 5});
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(source.reader(), reader);
  std::vector<float> out(32);
  ASSERT_TRUE(reader->Fetch({2}, absl::MakeSpan(out)).ok());
  EXPECT_EQ(*source.ReaderFor({.begin = 0, .end = 4}), reader);
  EXPECT_EQ(reader->counters().rows_requested, 1U);  // The same, with what it has learned.
  EXPECT_EQ(*source.ReaderFor({.begin = 4, .end = 9}), nullptr);
  EXPECT_EQ(source.reader(), nullptr);
  NgramSource none(**file, PleSpec{}, {});
  EXPECT_EQ(*none.ReaderFor({.begin = 0, .end = 9}), nullptr);
}

TEST(NgramTableTest, IsRefusedWhereThereIsNone) {
  TestGguf parts;
  parts.keys = {{"general.architecture", GgufString("test")}};
  parts.AddTensor("first", {32});
  const TestFolder folder;
  const absl::StatusOr<std::unique_ptr<GgufFile>> file =
      GgufFile::Open(folder.Write("m.gguf", parts.Build()));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(absl::IsInvalidArgument(FindNgramTable(**file, PleSpec{}).status()));
}

TEST(PleIoTest, HasNames) {
  for (const PleIo io : {PleIo::kAuto, PleIo::kDirect, PleIo::kMmap, PleIo::kRam}) {
    const absl::StatusOr<PleIo> parsed = ParsePleIo(kPleIoNames[static_cast<int>(io)]);
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, io);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParsePleIo("fast").status()));
}

}  // namespace
}  // namespace warpline
