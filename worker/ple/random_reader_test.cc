#include "worker/ple/random_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/ple/fakes.h"

namespace warpline {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<RandomReader>> OpenReader(const NgramTable& table, PleIo mode) {
  return mode == PleIo::kDirect ? OpenDirectReader(table) : OpenMappedReader(table);
}

std::vector<uint8_t> Read(RandomReader& reader, const NgramTable& table,
                          const std::vector<int64_t>& rows, absl::Status& status) {
  std::vector<uint8_t> bytes(rows.size() * table.row_bytes(), 0xEE);
  std::vector<ReadPiece> pieces;
  for (size_t i = 0; i < rows.size(); ++i) {
    pieces.push_back({.offset = table.offset + rows[i] * table.row_bytes(),
                      .to = bytes.data() + i * table.row_bytes()});
  }
  status = reader.Read(pieces);
  return bytes;
}

std::vector<int64_t> SomeRows(int64_t row_count, int count) {
  std::mt19937 random(count);
  std::vector<int64_t> rows = {0, row_count - 1};
  for (int i = 2; i < count; ++i) rows.push_back(random() % row_count);
  std::sort(rows.begin(), rows.end());
  return rows;
}

// Every mode, on tables that differ in what matters to blocks of 4 KiB.
class RandomReaderTest : public ::testing::TestWithParam<PleIo> {
 protected:
  // Null, and the test skipped, where the test's folder has no O_DIRECT or the machine no io_uring.
  std::unique_ptr<RandomReader> OpenOrSkip(const NgramTable& table) {
    absl::StatusOr<std::unique_ptr<RandomReader>> reader = OpenReader(table, GetParam());
    if (GetParam() == PleIo::kDirect && absl::IsFailedPrecondition(reader.status())) return nullptr;
    EXPECT_TRUE(reader.ok()) << reader.status();
    return reader.ok() ? *std::move(reader) : nullptr;
  }
  static bool Same(const TableFile& file, const std::vector<int64_t>& rows,
                   const std::vector<uint8_t>& bytes) {
    const int64_t row_bytes = file.table().row_bytes();
    for (size_t i = 0; i < rows.size(); ++i) {
      if (std::memcmp(bytes.data() + i * row_bytes, file.RowData(rows[i]), row_bytes) != 0)
        return false;
    }
    return true;
  }
};

TEST_P(RandomReaderTest, GivesTheBytesOfTheFile) {
  const TableFile::Args tables[] = {
      {.type = QuantType::kQ4_0, .row_count = 20'000},
      {.type = QuantType::kQ4_0, .row_count = 20'000, .bytes_before = 8192},
      {.type = QuantType::kQ4_0, .row_count = 5, .bytes_before = 1},
      {.type = QuantType::kQ8_0, .row_count = 1, .bytes_before = 4095, .bytes_behind = 9000},
      {.type = QuantType::kF32, .row_width = 1024, .row_count = 900, .bytes_before = 4096},
      {.type = QuantType::kF32, .row_width = 2600, .row_count = 300, .bytes_before = 4095},
  };
  for (const TableFile::Args& args : tables) {
    const TableFile file(args);
    const std::unique_ptr<RandomReader> reader = OpenOrSkip(file.table());
    if (reader == nullptr) GTEST_SKIP() << "no direct reads here";
    for (const int count : {2, 3, 300, 5000}) {
      const std::vector<int64_t> rows = SomeRows(args.row_count, count);
      absl::Status status;
      const std::vector<uint8_t> bytes = Read(*reader, file.table(), rows, status);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(Same(file, rows, bytes))
          << count << " of " << args.row_count << " rows, offset " << args.bytes_before;
    }
  }
}

TEST_P(RandomReaderTest, ATruncatedFileIsAShortReadThatNamesFileAndOffset) {
  const TableFile file({.row_count = 1000});
  const std::unique_ptr<RandomReader> reader = OpenOrSkip(file.table());
  if (reader == nullptr) GTEST_SKIP() << "no direct reads here";
  const int64_t row_bytes = file.table().row_bytes();
  ASSERT_EQ(truncate(file.table().path.c_str(), file.table().offset + 500 * row_bytes), 0);
  absl::Status status;
  const std::vector<int64_t> before = SomeRows(500, 100);
  EXPECT_TRUE(Same(file, before, Read(*reader, file.table(), before, status)));
  EXPECT_TRUE(status.ok()) << status;
  Read(*reader, file.table(), SomeRows(1000, 300), status);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(file.table().path));
  EXPECT_THAT(std::string(status.message()), HasSubstr("short read at offset "));
  // What is there can still be read.
  EXPECT_TRUE(Same(file, before, Read(*reader, file.table(), before, status)));
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(RandomReaderTest, RefusesAFileOfAnotherSize) {
  const TableFile file;
  ASSERT_EQ(truncate(file.table().path.c_str(), file.table().file_bytes - 1), 0);
  const absl::Status status = OpenReader(file.table(), GetParam()).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat(file.table().file_bytes - 1, " bytes, but had ",
                                     file.table().file_bytes)));
}

TEST_P(RandomReaderTest, SaysWhenTheFileIsMissing) {
  NgramTable table = TableFile().table();
  EXPECT_TRUE(absl::IsNotFound(OpenReader(table, GetParam()).status()));
}

INSTANTIATE_TEST_SUITE_P(Modes, RandomReaderTest, ::testing::Values(PleIo::kDirect, PleIo::kMmap),
                         [](const auto& info) {
                           return std::string(kPleIoNames[static_cast<int>(info.param)]);
                         });

// From now on this process gets EPERM for one system call, as in a container that filters it.
bool Deny(uint32_t system_call) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, system_call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {.len = std::size(filter), .filter = filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Forking while other threads run needs the slower style.
class FilteredDeathTest : public ::testing::Test {
 protected:
  FilteredDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(FilteredDeathTest, WithoutIoUringTheDirectModeSaysSo) {
  EXPECT_EXIT(
      {
        const TableFile file;
        if (!Deny(SYS_io_uring_setup)) std::exit(9);
        const absl::Status status = OpenDirectReader(file.table()).status();
        std::fprintf(stderr, "%s\n", status.ToString().c_str());
        std::exit(absl::IsFailedPrecondition(status) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "io_uring is not available|no O_DIRECT");
}

TEST_F(FilteredDeathTest, WithoutProcessVmReadvTheMappedModeReadsAllTheSame) {
  EXPECT_EXIT(
      {
        const TableFile file;
        if (!Deny(SYS_process_vm_readv)) std::exit(9);
        absl::StatusOr<std::unique_ptr<RandomReader>> reader = OpenMappedReader(file.table());
        absl::Status status = reader.status();
        const std::vector<uint8_t> bytes = Read(**reader, file.table(), {3, 70}, status);
        const bool same =
            std::equal(bytes.begin(), bytes.begin() + file.table().row_bytes(), file.RowData(3));
        std::exit(status.ok() && same ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace warpline
