#include "model/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "model/gguf_test_file.h"

namespace warpline {
namespace {

using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(MappedFileTest, RefusesWhatIsNoRegularFileWithoutBlocking) {
  const TestFolder folder;
  const auto open_error = [](const std::string& path) { return MappedFile::Open(path).status(); };
  const std::string fifo = folder.Path("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(open_error(fifo)));
  EXPECT_THAT(Message(open_error(fifo)), HasSubstr("fifo: is a FIFO"));
  EXPECT_TRUE(absl::IsFailedPrecondition(open_error("/")));
  EXPECT_THAT(Message(open_error("/")), HasSubstr("a directory"));
  EXPECT_THAT(Message(open_error("/dev/zero")), HasSubstr("a device"));
  EXPECT_TRUE(absl::IsNotFound(open_error(folder.Path("absent"))));
  EXPECT_TRUE(absl::IsNotFound(open_error(std::string("/dev/null\0x", 11))));
  std::filesystem::create_symlink("loop", folder.Path("loop"));
  EXPECT_TRUE(absl::IsFailedPrecondition(open_error(folder.Path("loop"))));
  const std::string odd = folder.Write("a b\n\xFF.gguf", "bytes");
  EXPECT_TRUE(open_error(odd).ok());
  EXPECT_THAT(Message(open_error(odd + "x")), HasSubstr("a b\\x0A\\xFF.ggufx: No such file"));
  if (geteuid() != 0) {
    ASSERT_EQ(chmod(odd.c_str(), 0), 0);
    EXPECT_TRUE(absl::IsPermissionDenied(open_error(odd)));
  }
}

TEST(MappedFileTest, ATruncatedMapEndsTheProcessWithTheNameOfTheFile) {
  const TestFolder folder;
  const std::string path = folder.Write("model.gguf", std::string(1 << 18, 'x'));
  EXPECT_EXIT(
      {
        InstallMappedFileFaultHandler();
        const auto file = MappedFile::Open(path);
        std::filesystem::resize_file(path, 512);
        _exit((*file)->bytes()[(1 << 18) - 1] == 'x' ? 0 : 1);
      },
      testing::ExitedWithCode(3), "model file .*model.gguf cannot be read any more");
}

TEST(MappedFileTest, ReadsAgainWhatWasReleased) {
  const TestFolder folder;
  const std::string path = folder.Write("model.gguf", std::string(100'000, 'x'));
  const auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok());
  (*file)->Release(10, 99'980);
  EXPECT_THAT((*file)->bytes(), testing::Each('x'));
}

TEST(MappedFileTest, OtherBusErrorsKeepTheirAction) {
  EXPECT_EXIT(
      {
        InstallMappedFileFaultHandler();
        raise(SIGBUS);
        raise(SIGBUS);
        _exit(0);
      },
      testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace warpline
