#include "model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/gguf_test_file.h"

namespace warpline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr uint64_t kTwoTo63 = uint64_t{1} << 63;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TestGguf Small() {
  TestGguf file;
  file.Set("general.architecture", GgufString("llama"));
  file.AddTensor("a.weight", {8, 2});
  file.AddTensor("b.weight", {4});
  return file;
}

class GgufTest : public testing::Test {
 protected:
  absl::Status OpenError(absl::string_view bytes) {
    const auto file = GgufFile::Open(folder_.Write("model.gguf", bytes));
    return file.status();
  }
  // Null, and a failure of the test, when it does not open.
  std::unique_ptr<GgufFile> OpenGood(absl::string_view bytes) {
    auto file = GgufFile::Open(folder_.Write("model.gguf", bytes));
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? *std::move(file) : nullptr;
  }

  TestFolder folder_;
};

TEST_F(GgufTest, ReadsEveryTypeOfValue) {
  TestGguf made = Small();
  made.Set("u8", Bytes(uint32_t{0}) + Bytes(uint8_t{200}));
  made.Set("i8", Bytes(uint32_t{1}) + Bytes(int8_t{-3}));
  made.Set("u16", GgufU16(65535));
  made.Set("i16", Bytes(uint32_t{3}) + Bytes(int16_t{-300}));
  made.Set("u32", GgufU32(4'000'000'000));
  made.Set("i32", GgufI32(-7));
  made.Set("f32", GgufF32(0.5f));
  made.Set("bool", GgufBool(1));
  made.Set("u64", Bytes(uint32_t{10}) + Bytes(kTwoTo63));
  made.Set("i64", Bytes(uint32_t{11}) + Bytes(int64_t{-5'000'000'000}));
  made.Set("f64", Bytes(uint32_t{12}) + Bytes(-2.25));
  made.Set("texts", GgufStrings({"", "two", std::string("n\0l", 3)}));
  made.Set("bytes", GgufArrayOf(1, 2, "\x01\xFF"));
  made.Set("flags", GgufArrayOf(7, 2, absl::string_view("\x01\x00", 2)));
  made.Set("floats", GgufArrayOf(6, 2, Bytes(1.5f) + Bytes(-2.0f)));
  const auto file = OpenGood(made.Build());
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(*file->GetInt("u8"), 200);
  EXPECT_EQ(*file->GetInt("i8"), -3);
  EXPECT_EQ(*file->GetInt("u16"), 65535);
  EXPECT_EQ(*file->GetInt("i16"), -300);
  EXPECT_EQ(*file->GetInt("u32"), 4'000'000'000);
  EXPECT_EQ(*file->GetInt("i32"), -7);
  EXPECT_EQ(*file->GetFloat("f32"), 0.5);
  EXPECT_EQ(*file->GetBool("bool"), true);
  EXPECT_EQ(*file->GetInt("i64"), -5'000'000'000);
  EXPECT_EQ(*file->GetFloat("f64"), -2.25);
  EXPECT_EQ(*file->GetString("general.architecture"), "llama");
  EXPECT_THAT(*file->GetStrings("texts"), ElementsAre("", "two", std::string("n\0l", 3)));
  EXPECT_THAT(*file->GetInts("bytes"), ElementsAre(1, -1));
  EXPECT_THAT(*file->GetInts("flags"), ElementsAre(1, 0));
  EXPECT_THAT(*file->GetFloats("floats"), ElementsAre(1.5, -2.0));
  EXPECT_THAT(file->warnings(), IsEmpty());
}

TEST_F(GgufTest, NamesKeyTypeAndValueOfAWrongAccess) {
  TestGguf made = Small();
  made.Set("text", GgufString("12\n"));
  made.Set("big", Bytes(uint32_t{10}) + Bytes(kTwoTo63));
  made.Set("list", GgufU32s({1, 2, 3}));
  const auto file = OpenGood(made.Build());
  ASSERT_NE(file, nullptr);
  EXPECT_TRUE(absl::IsNotFound(file->GetInt("absent").status()));
  EXPECT_THAT(Message(file->GetInt("absent").status()), HasSubstr("key absent is missing"));
  EXPECT_TRUE(absl::IsInvalidArgument(file->GetInt("text").status()));
  EXPECT_THAT(Message(file->GetInt("text").status()),
              AllOf(HasSubstr("model.gguf"), HasSubstr("key text is string \"12\\x0A\"")));
  EXPECT_THAT(Message(file->GetInt("big").status()), HasSubstr("u64 9223372036854775808"));
  EXPECT_THAT(Message(file->GetStrings("list").status()),
              HasSubstr("array 3 elements of type u32"));
  EXPECT_TRUE(absl::IsInvalidArgument(file->GetFloat("list").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(file->GetBool("big").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(file->GetString("big").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(file->GetFloats("list").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(file->GetInts("text").status()));
}

TEST_F(GgufTest, MapsTheDataOfEachTensor) {
  for (const uint64_t alignment : {uint64_t{1}, uint64_t{32}, uint64_t{4096}, uint64_t{1} << 20}) {
    TestGguf made = Small();
    made.alignment = alignment;
    made.Set("general.alignment", GgufU32(static_cast<uint32_t>(alignment)));
    made.Tensor("a.weight").data = std::string(64, 'x');
    made.Tensor("b.weight").data = std::string(16, 'y');
    const auto file = OpenGood(made.Build());
    ASSERT_NE(file, nullptr) << alignment;
    ASSERT_THAT(file->tensors(), SizeIs(2));
    const GgufTensor* const b = file->FindTensor("b.weight");
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(b->n_dims, 1);
    EXPECT_THAT(b->dims, ElementsAre(4, 1, 1, 1));
    EXPECT_EQ(b->type, QuantType::kF32);
    EXPECT_THAT(file->Data(*b), SizeIs(16));
    EXPECT_THAT(file->Data(*b), testing::Each('y'));
    EXPECT_THAT(file->Data(file->tensors()[0]), testing::Each('x'));
    file->Release(file->tensors()[0]);
    EXPECT_THAT(file->Data(file->tensors()[0]), testing::Each('x'));
    EXPECT_EQ(file->FindTensor("c.weight"), nullptr);
  }
}

TEST_F(GgufTest, AcceptsVersion2AndAFileOfTokenizerKeysAlone) {
  TestGguf made;
  made.version = 2;
  made.Set("tokenizer.ggml.model", GgufString("gpt2"));
  const auto file = OpenGood(made.Build());
  ASSERT_NE(file, nullptr);
  EXPECT_THAT(file->tensors(), IsEmpty());
  EXPECT_TRUE(file->Has("tokenizer.ggml.model"));
}

TEST_F(GgufTest, WarnsOfTrailingBytesButNotOfPadding) {
  const std::string bytes = Small().Build();
  const uint64_t padded = (bytes.size() + 31) / 32 * 32;
  std::string padded_bytes = bytes;
  padded_bytes.resize(padded);
  EXPECT_THAT(OpenGood(padded_bytes)->warnings(), IsEmpty());
  padded_bytes += "abc";
  EXPECT_THAT(OpenGood(padded_bytes)->warnings(),
              ElementsAre(AllOf(HasSubstr("model.gguf"), HasSubstr("3 bytes after the last tensor"),
                                HasSubstr(absl::StrCat("expected ", padded)))));
}

// What a broken file is, and parts of the message that refuses it.
struct Hostile {
  const char* name;
  std::string bytes;
  std::vector<std::string> parts;
};

std::string With(const std::function<void(TestGguf&)>& change) {
  TestGguf file = Small();
  change(file);
  return file.Build();
}

// One value of a key "k" of the small file.
std::string WithValue(std::string value) {
  return With([&](TestGguf& file) { file.Set("k", std::move(value)); });
}

std::vector<Hostile> HostileStarts() {
  const auto big_endian = [](TestGguf& f) { f.version = __builtin_bswap32(3); };
  return {
      {"empty", "", {"the file is empty"}},
      {"three bytes", "GGU", {"not a GGUF file", "offset 0", "\"GGU\""}},
      {"magic alone", "GGUF", {"needs 24 bytes", "4 bytes of the file"}},
      {"bad magic",
       "\x01\n\x7F\xFF rest of it",
       {"\"\\x01\\x0A\\x7F\\xFF\"", "instead of \"GGUF\""}},
      {"html", "\n <!DOCTYPE html><html>..</html>", {"an HTML page"}},
      {"lfs",
       "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
       {"Git LFS pointer"}},
      {"old", "tjgg\x01\0\0\0and so on", {"before GGUF"}},
      {"version 0",
       With([](TestGguf& f) { f.version = 0; }),
       {"version at offset 4 is 0", "2 and 3"}},
      {"version 1", With([](TestGguf& f) { f.version = 1; }), {"version at offset 4 is 1"}},
      {"version 4", With([](TestGguf& f) { f.version = 4; }), {"version at offset 4 is 4"}},
      {"big endian", With(big_endian), {"big-endian", "swapped bytes 3"}},
      {"big endian magic", "FUGG\0\0\0\3 and so on", {"big-endian"}},
      {"tensors -1",
       With([](TestGguf& f) { f.extra_tensors = -3; }),
       {"tensor count at offset 8 is -1"}},
      {"tensors 2^63",
       With([](TestGguf& f) { f.extra_tensors = kHuge - 2; }),
       {"tensor count at offset 8 is 9223372036854775807", "must be 0 to"}},
      {"keys -1", With([](TestGguf& f) { f.extra_keys = -2; }), {"key count at offset 16 is -1"}},
      {"keys 2^63",
       With([](TestGguf& f) { f.extra_keys = kHuge - 1; }),
       {"key count at offset 16 is 9223372036854775807"}},
      {"joined",
       Small().Build() + Small().Build(),
       {"another GGUF file follows", "start from shard 1"}},
  };
}

std::vector<Hostile> HostileKeys() {
  const std::string head = "GGUF" + Bytes(uint32_t{3}) + Bytes(int64_t{0}) + Bytes(int64_t{1});
  const std::string rest(64, '\0');
  return {
      {"key length -1",
       head + Bytes(~uint64_t{0}) + rest,
       {"name of key 0 at offset 24", "18446744073709551615", "64 bytes remain"}},
      {"key length beyond the end",
       head + Bytes(uint64_t{65}) + rest,
       {"length 65", "64 bytes remain"}},
      {"key length 0", head + Bytes(uint64_t{0}) + rest, {"key 0 at offset 24 is empty"}},
      {"key too long",
       head + Bytes(uint64_t{65537}) + std::string(70000, 'k'),
       {"65537", "limit of 65536"}},
      {"key with NUL",
       head + GgufText(absl::string_view("a\0b", 3)) + GgufU32(1) + rest,
       {"control characters", "a\\x00b"}},
      {"key with newline", head + GgufText("a\nb") + GgufU32(1) + rest, {"a\\x0Ab"}},
      {"key not UTF-8", head + GgufText("a\xC3") + GgufU32(1) + rest, {"a\\xC3"}},
      {"duplicate key",
       With([](TestGguf& f) { f.keys.push_back(f.keys[0]); }),
       {"key general.architecture", "occurs twice"}},
      {"string length 2^63",
       WithValue(Bytes(uint32_t{8}) + Bytes(kTwoTo63)),
       {"value of key k", "9223372036854775808"}},
      {"string beyond the end",
       WithValue(Bytes(uint32_t{8}) + Bytes(uint64_t{5000})),
       {"key k", "5000"}},
      {"value type 13",
       WithValue(Bytes(uint32_t{13}) + rest),
       {"key k", "value type 13", "highest is 12"}},
      {"bool 7", WithValue(GgufBool(7)), {"key k", "has the value 7"}},
      {"bool 7 in an array",
       WithValue(GgufArrayOf(7, 2, "\x01\x07")),
       {"key k", "has the value 7"}},
      {"array length 2^63",
       WithValue(GgufArrayOf(4, kTwoTo63, rest)),
       {"key k", "9223372036854775808 elements"}},
      {"array length -1",
       WithValue(GgufArrayOf(0, ~uint64_t{0}, rest)),
       {"18446744073709551615 elements"}},
      {"string array length",
       WithValue(GgufArrayOf(8, 1000, rest)),
       {"array of 1000 elements of type string"}},
      {"array of arrays",
       WithValue(GgufArrayOf(9, 1, GgufArrayOf(9, 1, rest))),
       {"array of arrays"}},
      {"array of unknown", WithValue(GgufArrayOf(77, 1, rest)), {"element type 77"}},
      {"token of 10 MiB",
       With([](TestGguf& f) {
         f.Set("tokenizer.ggml.tokens", GgufStrings({"a", std::string(10 << 20, 't')}));
       }),
       {"element 1 of key tokenizer.ggml.tokens", "10485760", "limit of 65536"}},
      {"string of 65 MiB",
       WithValue(GgufString(std::string(65 << 20, 's'))),
       {"68157440", "limit of 67108864"}},
      {"alignment 0",
       With([](TestGguf& f) { f.Set("general.alignment", GgufU32(0)); }),
       {"general.alignment is 0", "power of two"}},
      {"alignment 3",
       With([](TestGguf& f) { f.Set("general.alignment", GgufU32(3)); }),
       {"alignment is 3"}},
      {"alignment 2^31",
       With([](TestGguf& f) { f.Set("general.alignment", GgufU32(1u << 31)); }),
       {"alignment is 2147483648"}},
      {"alignment u16",
       With([](TestGguf& f) { f.Set("general.alignment", GgufU16(32)); }),
       {"type u16"}},
  };
}

std::vector<Hostile> HostileTensors() {
  const auto dims = [](std::vector<int64_t> d) {
    return With([d](TestGguf& f) { f.Tensor("a.weight").dims = d; });
  };
  const auto type = [](int32_t t) {
    return With([t](TestGguf& f) { f.Tensor("a.weight").type = t; });
  };
  const auto shift = [](int64_t s) {
    return With([s](TestGguf& f) { f.Tensor("b.weight").shift = s; });
  };
  const auto name = [](std::string n) {
    return With([n](TestGguf& f) { f.Tensor("a.weight").name = n; });
  };
  std::vector<Hostile> cases = {
      {"no dims", dims({}), {"tensor a.weight", "has 0 dimensions"}},
      {"nine dims", dims({1, 1, 1, 1, 1, 1, 1, 1, 1}), {"tensor a.weight", "has 9 dimensions"}},
      {"dim 0", dims({8, 0}), {"tensor a.weight", "dimension 1 is 0"}},
      {"dim -1", dims({-1}), {"dimension 0 is -1"}},
      {"dim 2^63", dims({std::numeric_limits<int64_t>::min()}), {"is -9223372036854775808"}},
      {"product",
       dims({1 << 30, 1 << 30, 1 << 30}),
       {"tensor a.weight", "overflows", "1073741824 x"}},
      {"bytes",
       dims({kHuge}),
       {"tensor a.weight", "size of 9223372036854775807 blocks of 4 bytes overflows"}},
      {"sum beyond the end",
       dims({kHuge / 4}),
       {"tensor a.weight", "ends at 9223372036854775", "the file has"}},
      {"block",
       With([](TestGguf& f) { f.Tensor("a.weight").type = 8; }),
       {"dimension 0 is 8", "multiple of 32", "Q8_0"}},
      {"misaligned", shift(1), {"tensor b.weight", "offset 65", "expected 64", "alignment"}},
      {"overlap", shift(-32), {"tensor b.weight", "offset 32", "expected 64", "overlaps"}},
      {"gap", shift(32), {"tensor b.weight", "offset 96", "expected 64", "gap"}},
      {"far beyond the end", shift(kHuge - 63), {"tensor b.weight", "expected 64", "gap"}},
      {"empty name", name(""), {"name of tensor 0", "is empty"}},
      {"64 bytes of name",
       name(std::string(64, 'n')),
       {"name of tensor 0", "length 64", "limit of 63"}},
      {"name with NUL", name(std::string("a\0", 2)), {"a\\x00"}},
      {"name with escape", name("a\x1B[2J"), {"a\\x1B[2J"}},
      {"duplicate name", name("b.weight"), {"tensor b.weight occurs twice"}},
  };
  for (const int32_t id : {-1, 4, 5, 9, 15, 31, 32, 33, 36, 37, 38, 43, 97, 1 << 30}) {
    cases.push_back(
        {"type", type(id), {"tensor a.weight", absl::StrCat("type number ", id), "IQ3_XXS=18"}});
  }
  return cases;
}

TEST_F(GgufTest, RefusesHostileFilesAndSaysWhy) {
  for (const auto& cases : {HostileStarts(), HostileKeys(), HostileTensors()}) {
    for (const Hostile& hostile : cases) {
      const absl::Status status = OpenError(hostile.bytes);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << hostile.name << ": " << status;
      EXPECT_THAT(Message(status), HasSubstr("model.gguf: ")) << hostile.name;
      EXPECT_THAT(Message(status), Not(HasSubstr("\n"))) << hostile.name;
      for (const std::string& part : hostile.parts) {
        EXPECT_THAT(Message(status), HasSubstr(part)) << hostile.name;
      }
    }
  }
}

TEST_F(GgufTest, RefusesEveryTruncationWithBothSizes) {
  const std::string bytes = Small().Build();
  ASSERT_TRUE(OpenError(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const absl::Status status = OpenError(bytes.substr(0, size));
    ASSERT_TRUE(absl::IsInvalidArgument(status)) << size << " of " << bytes.size();
  }
  EXPECT_THAT(Message(OpenError(bytes.substr(0, bytes.size() - 1))),
              AllOf(HasSubstr(absl::StrCat("ends at ", bytes.size())),
                    HasSubstr(absl::StrCat("the file has ", bytes.size() - 1, " bytes"))));
}

TEST_F(GgufTest, FingerprintsDifferWhereTheFilesDo) {
  TestGguf made = Small();
  made.AddTensor("big", {4096});
  const auto fingerprint = [&](bool everything) {
    const auto file = OpenGood(made.Build());
    return *FingerprintOf(*file, everything);
  };
  const std::string sample = fingerprint(false);
  const std::string whole = fingerprint(true);
  EXPECT_THAT(sample, SizeIs(32));
  EXPECT_EQ(sample, fingerprint(false));
  made.Tensor("big").data[4096] = 'x';  // Beyond the first 4 KiB.
  EXPECT_EQ(sample, fingerprint(false));
  EXPECT_NE(whole, fingerprint(true));
  made.Tensor("big").data[4095] = 'x';
  EXPECT_NE(sample, fingerprint(false));
  made = Small();
  made.AddTensor("big", {4096});
  made.Set("general.architecture", GgufString("qwen2"));
  EXPECT_NE(sample, fingerprint(false));
}

}  // namespace
}  // namespace warpline
