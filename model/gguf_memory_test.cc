#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "model/gguf.h"
#include "model/gguf_test_file.h"

namespace warpline {
namespace {

using ::testing::HasSubstr;

// Peak memory of a child that opens the file, beyond what it had before. It shares nothing with
// this process's peak.
int64_t PeakBytesOfOpening(const std::string& path) {
  malloc_trim(
      0);  // Or the child would take memory that this process has freed, without it showing.
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    const auto peak_kib = [] {
      struct rusage usage;
      getrusage(RUSAGE_SELF, &usage);
      return static_cast<int64_t>(usage.ru_maxrss);
    };
    const int64_t before = peak_kib();
    [[maybe_unused]] const auto file = GgufFile::Open(path);
    const int64_t growth = (peak_kib() - before) * 1024;
    _exit(write(ends[1], &growth, sizeof(growth)) == sizeof(growth) ? 0 : 1);
  }
  int64_t growth = -1;
  if (read(ends[0], &growth, sizeof(growth)) != sizeof(growth)) growth = -1;
  waitpid(child, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
  return growth;
}

TEST(GgufMemoryTest, NeedsLittleMemoryForHugeClaims) {
#ifdef WARPLINE_SANITIZED
  GTEST_SKIP() << "a sanitizer's own memory would be measured";
#endif
  const TestFolder folder;
  constexpr int64_t kMiB = 1 << 20;
  const auto repeated = [](const std::string& piece, uint64_t count) {
    std::string out;
    out.reserve(piece.size() * count);
    for (uint64_t i = 0; i < count; ++i) out += piece;
    return out;
  };
  TestGguf strings = TestGguf();  // Each empty string is 8 bytes in the file and 32 in memory.
  strings.Set("k", GgufArrayOf(8, 4 << 20, std::string(size_t{32} << 20, '\0')));
  TestGguf many_strings = TestGguf();  // Several arrays, each of them small enough.
  for (int i = 0; i < 20; ++i) {
    many_strings.Set(absl::StrCat("k", i), GgufArrayOf(8, 300'000, std::string(2'400'000, '\0')));
  }
  TestGguf bytes = TestGguf();  // Each byte becomes 8.
  bytes.Set("k", GgufArrayOf(0, 48 << 20, std::string(size_t{48} << 20, '\0')));
  TestGguf tokens = TestGguf();  // More than any model has, each too long for a string's own place.
  tokens.Set("k", GgufArrayOf(8, 400'000, repeated(GgufText(std::string(17, 't')), 400'000)));
  TestGguf text = TestGguf();  // Allowed, but not three times in memory.
  text.Set("k", GgufString(std::string(size_t{64} << 20, 's')));
  TestGguf infos;
  for (int i = 0; i < 65536; ++i)
    infos.AddTensor(absl::StrCat("a.long.name.of.a.tensor.number.", i), {1});
  TestGguf keys;
  for (int i = 0; i < 65536; ++i)
    keys.keys.emplace_back(absl::StrCat("a.long.name.of.a.key.number.", i), GgufU32(1));
  struct Case {
    const char* name;
    const TestGguf& made;
    bool opens;
  };
  const Case cases[] = {{"strings", strings, false}, {"many strings", many_strings, false},
                        {"bytes", bytes, false},     {"tokens", tokens, true},
                        {"text", text, true},        {"infos", infos, true},
                        {"keys", keys, true}};
  for (const Case& c : cases) {
    std::string built = c.made.Build();
    const auto size = static_cast<int64_t>(built.size());
    const std::string path = folder.Write("model.gguf", built);
    built = {};
    const int64_t growth = PeakBytesOfOpening(path);
    EXPECT_GE(growth, 0) << c.name;
    EXPECT_LT(growth, size + 60 * kMiB) << c.name << ", file of " << size;
    const absl::Status status = GgufFile::Open(path).status();
    EXPECT_EQ(status.ok(), c.opens) << c.name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.opens ? "" : "memory for metadata"))
        << c.name;
    RecordProperty(c.name, absl::StrCat(growth, " of ", size));
  }
}

}  // namespace
}  // namespace warpline
